"""Write inputs of datasets in the layouts that docs/datasets.md lists, as programs write them."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import datasets
import pandas
import pyarrow
from PIL import Image, PngImagePlugin
from pyarrow import ipc, parquet

Rows = list[dict[str, Any]]
ROWS: Final[Rows] = [{"prompt": "ein Fuß"}, {"prompt": '三毛猫, "b"'}]
TEXT: Final = "ein Fuß\n" + '三毛猫, "b"\n'
GERMAN: Final[Rows] = [{"prompt": "ein Fuß"}, {"prompt": "b; c"}]
FRAME: Final = pandas.DataFrame(
    {"prompt": ["ein Fuß", "b; c"], "seed": [7, 8], "note": ["x", "y z"]}
)
FRAME_ROWS: Final[Rows] = [
    {"prompt": "ein Fuß", "seed": 7, "extra": {"note": "x"}},
    {"prompt": "b; c", "seed": 8, "extra": {"note": "y z"}},
]
INFOTEXT: Final = (
    "a cat\nNegative prompt: a dog\n"
    "Steps: 20, Sampler: Euler a, CFG scale: 7.5, Seed: 7, Size: 512x768, Model hash: 45dee52b"
)
OF_INFOTEXT: Final[Rows] = [
    {
        "prompt": "a cat",
        "negative_prompt": "a dog",
        "num_inference_steps": 20,
        "scheduler": "euler_ancestral",
        "guidance_scale": 7.5,
        "seed": 7,
    }
]
WORKFLOW: Final = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "seed": 7,
            "steps": 20,
            "cfg": 7.5,
            "denoise": 1,
            "sampler_name": "euler_ancestral",
            "scheduler": "normal",
            "model": ["4", 0],
            "positive": ["6", 0],
            "negative": ["7", 0],
            "latent_image": ["5", 0],
        },
    },
    "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
    "5": {
        "class_type": "EmptyLatentImage",
        "inputs": {"width": 512, "height": 768, "batch_size": 1},
    },
    "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "a dog", "clip": ["4", 1]}},
}


@dataclass(frozen=True)
class Layout:
    """An input, and the rows that it stands for, as far as it can be read."""

    name: str
    """The file or folder below the folder of the test; a pattern if it has a wildcard."""
    write: Callable[[Path], object]
    """Writes the input to its path."""
    rows: Rows = field(default_factory=list)
    """The fields of each row that is read, as far as they are compared."""
    options: dict[str, Any] = field(default_factory=dict)
    """What the caller says of the input."""


def _text(content: str, encoding: str = "utf-8") -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode(encoding))


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _csv(**options: Any) -> Callable[[Path], object]:
    return lambda path: FRAME.to_csv(path, **{"index": False, **options})


def _zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "prompt\na\n")


def _png(**texts: str) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        info = PngImagePlugin.PngInfo()
        for name, text in texts.items():
            info.add_text(name, text)
        Image.new("RGB", (8, 8)).save(path, "PNG", pnginfo=info)

    return write


def _with_exif(path: Path) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + INFOTEXT.encode("utf-16-be")
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def _folder(**files: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a writer of a folder. In the names of files __ stands for / and DOT for a dot."""

    def write(path: Path) -> None:
        path.mkdir()
        for name, write_file in files.items():
            file = path / name.replace("__", "/").replace("DOT", ".").replace("EQ", "=")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file)

    return write


def _ipc(path: Path) -> None:
    table = pyarrow.Table.from_pandas(FRAME)
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def _parquet(path: Path) -> None:
    FRAME.to_parquet(path)


def _cut(write: Callable[[Path], object], share: float = 0.6) -> Callable[[Path], object]:
    def cut(path: Path) -> None:
        write(path)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return cut


def _saved(path: Path) -> None:
    datasets.Dataset.from_pandas(FRAME).save_to_disk(path)


def _saved_splits(path: Path) -> None:
    part = datasets.Dataset.from_pandas(FRAME)
    datasets.DatasetDict(train=part, test=part).save_to_disk(path)


def _lines(rows: Sequence[object]) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _arrow_file(path: Path) -> None:
    table = pyarrow.Table.from_pandas(FRAME)
    with ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)


def _many_columns(path: Path) -> None:
    names = [f"c{number}" for number in range(1_001)]
    table = pyarrow.table({"prompt": ["a"], **{name: [1] for name in names}})
    parquet.write_table(table, path)


_FINE: Final[Rows] = [{"prompt": "fine"}]
_BUFFER: Final = io.BytesIO()
FRAME.to_parquet(_BUFFER)

LAYOUTS: Final[dict[str, Layout]] = {
    # text
    "`.txt`, a prompt a line": Layout("a.txt", _text(TEXT), ROWS),
    "`.txt`, lines end in CR LF": Layout("a.txt", _text(TEXT.replace("\n", "\r\n")), ROWS),
    "`.txt`, lines end in CR alone": Layout("a.txt", _text(TEXT.replace("\n", "\r")), ROWS),
    "`.txt`, blank lines between prompts": Layout(
        "a.txt", _text("a\n\n \nb\n"), [{"prompt": "a", "row": 0}, {"prompt": "b", "row": 3}]
    ),
    "`.txt`, UTF-8 with a byte order mark": Layout("a.txt", _text(TEXT, "utf-8-sig"), ROWS),
    "`.txt`, UTF-16 with a mark": Layout("a.txt", _text(TEXT, "utf-16"), ROWS),
    "`.txt`, UTF-32 with a mark": Layout("a.txt", _text(TEXT, "utf-32"), ROWS),
    "`.txt`, UTF-16 without a mark": Layout("a.txt", _text("abc\n", "utf-16-be")),
    "the same with `--encoding utf-16-be`": Layout(
        "a.txt", _text(TEXT, "utf-16-be"), ROWS, {"encoding": "utf-16-be"}
    ),
    "`.txt`, Windows-1252": Layout("a.txt", _text("fine\nein Fuß\n", "cp1252"), _FINE),
    "the same with `--encoding cp1252`": Layout(
        "a.txt", _text("ein Fuß\nb; c\n", "cp1252"), GERMAN, {"encoding": "cp1252"}
    ),
    "`.txt`, Shift JIS with `--encoding shift_jis`": Layout(
        "a.txt", _text("三毛猫\n", "shift_jis"), [{"prompt": "三毛猫"}], {"encoding": "shift_jis"}
    ),
    "`.txt`, control characters in a prompt": Layout("a.txt", _text("fine\na\x07b\n"), _FINE),
    "`.txt`, a prompt of 4,001 characters": Layout(
        "a.txt", _text("fine\n" + "x" * 4_001 + "\n"), _FINE
    ),
    "`.txt`, a line of more than 16 million characters": Layout(
        "a.txt", _bytes(b"a" * ((1 << 24) + 1))
    ),
    "`.txt` that is JSON lines": Layout("a.txt", _text(_lines(ROWS))),
    "`.txt` with tabs and a header, as Excel saves Unicode Text": Layout(
        "a.txt", _csv(sep="\t", encoding="utf-16", lineterminator="\r\n")
    ),
    "the same with `--input-format tsv`": Layout(
        "a.txt", _csv(sep="\t", encoding="utf-16"), FRAME_ROWS, {"input_format": "tsv"}
    ),
    "`.txt` that is CSV": Layout("a.txt", _csv()),
    "`.txt` whose first line is `prompt`": Layout("a.txt", _text("prompt\na cat\n")),
    "`.txt` that begins like a header, `prompt, masterpiece`": Layout(
        "a.txt", _text("prompt, masterpiece\n"), [{"prompt": "prompt, masterpiece"}]
    ),
    "`.txt` with alternatives, `a {red|blue} car`": Layout(
        "a.txt", _text("a {red|blue} car\n"), [{"prompt": "a {red|blue} car"}]
    ),
    "`.txt` with wildcards, `a __color__ car`": Layout(
        "a.txt", _text("a __color__ car\n"), [{"prompt": "a __color__ car"}]
    ),
    # other tools
    'AUTOMATIC1111: `--prompt "a cat" --steps 20`, a line each': Layout(
        "a.txt",
        _text('--prompt "a cat" --steps 20 --cfg_scale 7.5 --seed 7\nplain\n'),
        [
            {"prompt": "a cat", "num_inference_steps": 20, "guidance_scale": 7.5, "seed": 7},
            {"prompt": "plain"},
        ],
    ),
    "the same with `--subseed_strength 0.3`": Layout(
        "a.txt", _text("--prompt a --subseed_strength 0.3\n"), [{"prompt": "a"}]
    ),
    "the same with an option that the script does not know": Layout(
        "a.txt", _text("fine\n--prompt a --stepps 20\n"), _FINE
    ),
    "AUTOMATIC1111: infotexts, one below the other": Layout(
        "a.txt", _text(f"{INFOTEXT}\n\n{INFOTEXT}\n"), OF_INFOTEXT * 2
    ),
    "prompts, and an infotext 64 KiB below": Layout("a.txt", _text("a cat\n" * 20_000 + INFOTEXT)),
    "AUTOMATIC1111: requests to its API, a line each, with `--input-format a1111`": Layout(
        "a.txt",
        _text(_lines([{"prompt": "a", "steps": 20, "cfg_scale": 7.5, "seed": -1}])),
        [{"prompt": "a", "num_inference_steps": 20, "guidance_scale": 7.5}],
        {"input_format": "a1111"},
    ),
    "Midjourney: `a cat --ar 16:9`": Layout(
        "a.txt", _text("a cat --ar 16:9\n"), [{"prompt": "a cat --ar 16:9"}]
    ),
    "PNG of AUTOMATIC1111's web UI": Layout("a.png", _png(parameters=INFOTEXT), OF_INFOTEXT),
    "JPEG of it": Layout("a.jpg", _with_exif, OF_INFOTEXT),
    "WebP of it": Layout("a.webp", _with_exif, OF_INFOTEXT),
    "PNG of ComfyUI": Layout(
        "a.png", _png(prompt=json.dumps(WORKFLOW), workflow="{}"), OF_INFOTEXT
    ),
    "PNG that says nothing of its making": Layout("a.png", _png(Comment="a cat")),
    "a folder of such images": Layout(
        "images",
        _folder(aDOTpng=_png(parameters=INFOTEXT), bDOTwebp=_with_exif, cDOTpng=_png()),
        OF_INFOTEXT * 2,
    ),
    "ComfyUI: a workflow that was saved with Export (API)": Layout(
        "a.json", _text(json.dumps(WORKFLOW, indent=2)), OF_INFOTEXT
    ),
    "ComfyUI: a workflow as its editor saves it": Layout(
        "a.json", _text(json.dumps({"last_node_id": 1, "nodes": [], "links": []}))
    ),
    "ComfyUI: a workflow with two samplers": Layout(
        "a.json", _text(json.dumps({**WORKFLOW, "8": WORKFLOW["3"]}))
    ),
    # CSV
    "`.csv` of pandas, `index=False`": Layout("a.csv", _csv(), FRAME_ROWS),
    "`.csv` of pandas with the index": Layout("a.csv", _csv(index=True)),
    "the same with `--ignore-column ''`": Layout(
        "a.csv", _csv(index=True), FRAME_ROWS, {"ignore_columns": [""]}
    ),
    "`.csv` of Excel: a byte order mark, CR LF": Layout(
        "a.csv", _csv(encoding="utf-8-sig", lineterminator="\r\n"), FRAME_ROWS
    ),
    "`.csv` with `;` between cells": Layout("a.csv", _csv(sep=";")),
    "the same with `--delimiter ';'`": Layout(
        "a.csv", _csv(sep=";"), FRAME_ROWS, {"delimiter": ";"}
    ),
    "`.csv` with tabs between cells": Layout("a.csv", _csv(sep="\t")),
    "`.tsv`": Layout("a.tsv", _csv(sep="\t"), FRAME_ROWS),
    "`.csv`, UTF-16 with a mark": Layout("a.csv", _csv(encoding="utf-16"), FRAME_ROWS),
    "`.csv`, a cell with line breaks": Layout(
        "a.csv", _text('prompt,seed\n"a\nb",7\n'), [{"prompt": "a\nb", "seed": 7}]
    ),
    "`.csv`, a quote that is never closed": Layout("a.csv", _text('prompt,seed\na,7\n"b,8\n')),
    "`.csv`, a row with more cells than the header": Layout(
        "a.csv", _text("prompt,seed\nfine,7\nb,8,9\n"), _FINE
    ),
    "`.csv`, a row with fewer cells": Layout(
        "a.csv", _text("prompt,seed,note\nfine,7\n"), [{"prompt": "fine", "seed": 7}]
    ),
    "`.csv`, two columns of one name": Layout("a.csv", _text("prompt,seed,seed\na,7,8\n")),
    "`.csv` without a header": Layout("a.csv", _text("a cat,7\na dog,8\n")),
    "`.csv` whose prompts are in the column `caption`": Layout("a.csv", _text("caption\na\n")),
    "the same with `--column prompt=caption`": Layout(
        "a.csv", _text("caption\na\n"), [{"prompt": "a"}], {"columns": {"prompt": "caption"}}
    ),
    "`.csv`, whole numbers as `7.0`": Layout(
        "a.csv", _text("prompt,seed\na,7.0\n"), [{"prompt": "a", "seed": 7}]
    ),
    "`.csv`, `1.5` in a column of whole numbers": Layout(
        "a.csv", _text("prompt,seed\nfine,\nb,1.5\n"), _FINE
    ),
    "a column `negativ_prompt`": Layout("a.csv", _text("prompt,negativ_prompt\na,b\n")),
    "a column `negative`, an ordinary word": Layout(
        "a.csv",
        _text("prompt,negative\nfine,b\n"),
        [{"prompt": "fine", "extra": {"negative": "b"}}],
    ),
    "a column `cfg_scale`": Layout("a.csv", _text("prompt,cfg_scale\na,7\n")),
    "a column `tenant`": Layout("a.csv", _text("prompt,tenant\na,b\n")),
    "an empty prompt": Layout("a.csv", _text("prompt,seed\nfine,7\n,8\n"), _FINE),
    "`.csv.gz`": Layout("a.csv.gz", _csv(), FRAME_ROWS),
    "`.csv.bz2`": Layout("a.csv.bz2", _csv(), FRAME_ROWS),
    "`.csv.xz`": Layout("a.csv.xz", _csv(), FRAME_ROWS),
    "`.csv.zst`": Layout(
        "a.csv.zst",
        _bytes(pyarrow.compress(FRAME.to_csv(index=False).encode(), "zstd", asbytes=True)),
        FRAME_ROWS,
    ),
    "gzip under the name `.csv`": Layout(
        "a.csv", _bytes(gzip.compress(FRAME.to_csv(index=False).encode())), FRAME_ROWS
    ),
    "bzip2 in gzip": Layout("a.txt", _bytes(gzip.compress(bz2.compress(TEXT.encode())))),
    "a gzip file that was cut off": Layout(
        "a.txt.gz", _cut(_bytes(gzip.compress(TEXT.encode() * 99, 0)))
    ),
    "an xz file that was cut off": Layout("a.txt.xz", _cut(_bytes(lzma.compress(TEXT.encode())))),
    # JSON
    "`.jsonl`, an object a line": Layout("a.jsonl", _text(_lines(ROWS)), ROWS),
    "`.jsonl`, a string a line": Layout(
        "a.jsonl", _text(_lines([row["prompt"] for row in ROWS])), ROWS
    ),
    "`.ndjson`": Layout("a.ndjson", _text(_lines(ROWS)), ROWS),
    "`.jsonl`, a line that is not JSON": Layout(
        "a.jsonl", _text('{"prompt": "fine"}\n{"prompt": b}\n'), _FINE
    ),
    "`.jsonl`, an object with `seed` twice": Layout(
        "a.jsonl", _text('{"prompt": "fine"}\n{"prompt": "b", "seed": 1, "seed": 2}\n'), _FINE
    ),
    "`.jsonl`, a number a line": Layout("a.jsonl", _text('"fine"\n12\n'), _FINE),
    "`.jsonl`, an object without `prompt`": Layout(
        "a.jsonl", _text('{"prompt": "fine"}\n{"text": "b"}\n'), _FINE
    ),
    "`.json`, an array of objects": Layout(
        "a.json", lambda path: FRAME.to_json(path, orient="records"), FRAME_ROWS
    ),
    "`.json`, an array with an object that has `seed` twice": Layout(
        "a.json", _text('[{"prompt": "fine"}, {"prompt": "b", "seed": 1, "seed": 2}]'), _FINE
    ),
    "`.json`, an array of prompts over several lines": Layout(
        "a.json", _text(json.dumps([row["prompt"] for row in ROWS], indent=2)), ROWS
    ),
    "`.json`, an object a line": Layout(
        "a.json", lambda path: FRAME.to_json(path, orient="records", lines=True), FRAME_ROWS
    ),
    "`.json` of pandas without `orient=`": Layout(
        "a.json", lambda path: FRAME.to_json(path, indent=1)
    ),
    "`.json`, an array that was cut off": Layout(
        "a.json", _text('[{"prompt": "a"}, {"prompt": "b"}')
    ),
    # binary
    "`.parquet`": Layout("a.parquet", _parquet, FRAME_ROWS),
    "`.parquet.gz`": Layout("a.parquet.gz", _bytes(gzip.compress(_BUFFER.getvalue()))),
    "Parquet under the name `.csv`": Layout("a.csv", _parquet),
    "a Parquet file that was cut off": Layout("a.parquet", _cut(_parquet)),
    "a table with 1,001 columns beside the prompt": Layout("a.parquet", _many_columns),
    "`.feather` of pandas": Layout("a.feather", lambda path: FRAME.to_feather(path), FRAME_ROWS),
    "`.feather` of version 1": Layout("a.feather", _bytes(b"FEA1" + b"\0" * 64)),
    "`.arrow`, a file": Layout("a.arrow", _arrow_file, FRAME_ROWS),
    "`.arrow`, a stream": Layout("a.arrow", _ipc, FRAME_ROWS),
    "a folder of `save_to_disk` of `datasets`": Layout("saved", _saved, FRAME_ROWS),
    "the same with splits": Layout("saved", _saved_splits),
    "a workbook, `.xlsx`": Layout("a.xlsx", _zipped),
    "a ZIP archive under the name `.csv`": Layout("a.csv", _zipped),
    "PDF under the name `.txt`": Layout("a.txt", _bytes(b"%PDF-1.7\n")),
    "PNG under the name `.txt`": Layout("a.txt", _png()),
    "a file with another end of its name, `.md`": Layout("a.md", _text(TEXT)),
    "the same with `--input-format txt`": Layout(
        "a.md", _text(TEXT), ROWS, {"input_format": "txt"}
    ),
    # folders
    "a folder with hidden files, as `.ipynb_checkpoints/a.csv`": Layout(
        "rows",
        _folder(aDOTcsv=_csv(), DOTipynb_checkpoints__aDOTcsv=_csv(), DOT_aDOTcsv=_text("\0")),
        FRAME_ROWS,
    ),
    "a Hive folder, `dt=2026-01-01/x.parquet`": Layout(
        "rows",
        _folder(dtEQ1__xDOTparquet=_parquet, dtEQ2__xDOTparquet=_parquet),
        FRAME_ROWS * 2,
    ),
    "a folder with tables and images": Layout(
        "rows", _folder(aDOTcsv=_csv(), bDOTpng=_png(parameters=INFOTEXT)), FRAME_ROWS
    ),
    "a folder with tables and `.json` files": Layout(
        "rows", _folder(aDOTcsv=_csv(), infoDOTjson=_text('{"count": 2}')), FRAME_ROWS
    ),
    "a folder with no table": Layout("rows", _folder(aDOTmd=_text("a"))),
    "a pattern, `rows-*.txt`": Layout(
        "rows-*.txt",
        lambda path: [(path.parent / f"rows-{n}.txt").write_text(f"{n}\n") for n in (2, 1)],
        [{"prompt": "1"}, {"prompt": "2"}],
    ),
    "a pattern that fits nothing": Layout("rows-*.txt", lambda path: None),
    "a file that is not there": Layout("a.txt", lambda path: None),
}
"""The layouts by the words of the table."""

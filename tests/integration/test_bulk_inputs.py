"""The inputs of `imagefleet bulk run`: files, globs, folders, standard input, S3 and the Hub.

No worker is needed: the tests read the plans. The command runs as a user starts it.
"""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pytest
from PIL import Image, PngImagePlugin
from pyarrow import parquet
from safetensors.numpy import save

from imagefleet import Client
from imagefleet.producer.bulk.run import BulkRun
from imagefleet.shared.bulk.file_layout import PLAN, plan_key
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage import open_store
from tests.support import forked
from tests.support.dataset_hub import serve_dataset
from tests.support.files import files_below
from tests.support.s3 import signed_s3

Bulk = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bulk_run(settings: dict[str, str], producer: Client, tmp_path: Path) -> Bulk:
    def bulk_run(
        *arguments: object, stdin: bytes = b"", environment: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        command = ("-m", "imagefleet.producer", "bulk", "run", "--no-wait")
        return forked.run(
            *command,
            *map(str, arguments),
            environment={**settings, **(environment or {})},
            stdin=stdin.decode(errors="surrogateescape"),
            folder=tmp_path,
        )

    return bulk_run


def _planned(client: Client, folder: Path) -> list[tuple[int, str]]:
    """Return number and prompt of each planned row."""
    return [(row["row"], row["prompt"]) for row in _rows(client.find_bulk(str(folder)))]


def _rows(run: BulkRun) -> list[dict[str, Any]]:
    lines = [run.store.get(plan_key(shard.name)).splitlines() for shard in run.plan.shards]
    return [json.loads(line) for shard in lines for line in shard]


def test_several_files_are_read_in_order_and_rows_are_numbered_through(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    (tmp_path / "b.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "three"}\n{"prompt": ""}\n')
    done = bulk_run("b.txt", "a.jsonl", "data")
    assert done.returncode == 3, done.stderr  # a row is rejected
    assert _planned(producer, tmp_path / "data") == [(0, "one"), (2, "two"), (3, "three")]
    assert "row 4 (a.jsonl, row 1): prompt=''" in done.stderr
    run = producer.find_bulk(str(tmp_path / "data"))
    [rejected] = run.rejected()
    assert (rejected["input"], rejected["input_row"]) == ("a.jsonl", 1)
    assert run.plan.source.name == "b.txt and a.jsonl"
    (tmp_path / "a.jsonl").write_text('{"prompt": "changed"}\n')
    refused = bulk_run("b.txt", "a.jsonl", "data")
    assert (refused.returncode, "holds another plan" in refused.stderr) == (1, True)


def test_globs_and_folders_are_read_in_the_order_of_their_names(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    for name, prompt in (("2.txt", "two"), ("10.txt", "ten"), ("1.csv", "prompt\none")):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text(f"{prompt}\n")
    (tmp_path / "in" / "notes.md").write_text("no table\n")
    assert bulk_run("in/*.txt", "globbed").returncode == 0
    assert _planned(producer, tmp_path / "globbed") == [(0, "ten"), (1, "two")]
    assert bulk_run("in", "all").returncode == 0
    assert [prompt for _, prompt in _planned(producer, tmp_path / "all")] == ["one", "ten", "two"]
    run = producer.bulk([tmp_path / "in" / "2.txt", tmp_path / "in" / "10.txt"], tmp_path / "two")
    assert [row["prompt"] for row in _rows(run)] == ["two", "ten"]


def test_standard_input_is_planned_as_a_file_of_the_given_type(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    table = io.BytesIO()
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"]}), table)
    for kind, data in {"csv": b"prompt,n\na,1\nb,2\n", "parquet": table.getvalue()}.items():
        done = bulk_run("-", kind, "--input-format", kind, stdin=data)
        assert done.returncode == 0, done.stderr
        assert _planned(producer, tmp_path / kind) == [(0, "a"), (1, "b")]
        again = bulk_run("-", kind, "--input-format", kind, stdin=data)
        assert again.returncode == 0, again.stderr
    for arguments in (("-", "x"), ("nowhere-*.txt", "x"), ("nowhere.txt", "x")):
        refused = bulk_run(*arguments, stdin=b"a\n")
        assert refused.returncode == 1
        assert refused.stderr.startswith("imagefleet: input=")
    assert not (tmp_path / "x").exists()


def test_limit_uses_the_first_rows_of_all_files(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "b.txt").write_text("three\nfour\n")
    assert bulk_run("a.txt", "b.txt", "data", "--limit", 3).returncode == 0
    assert _planned(producer, tmp_path / "data") == [(0, "one"), (2, "two"), (3, "three")]


def test_a_column_that_one_file_lacks_is_refused_before_anything_is_written(
    bulk_run: Bulk, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("prompt\na\n")
    (tmp_path / "b.csv").write_text("caption\nb\n")
    refused = bulk_run("a.csv", "b.csv", "data")
    assert (refused.returncode, "b.csv has no such column" in refused.stderr) == (1, True)
    assert not (tmp_path / "data").exists()


def test_a_dry_run_counts_and_writes_and_queues_nothing(
    bulk_run: Bulk, producer: Client, tmp_path: Path, namespace: str
) -> None:
    (tmp_path / "a.png").write_bytes(_png())
    (tmp_path / "a.csv").write_text("prompt,image\na,./a.png\nb,\nb,\n,\n")
    options = ("a.csv", "data", "--dry-run", "--num-images-per-prompt", 3, "--dedupe")
    told = bulk_run(*options)
    assert told.returncode == 3, told.stderr  # a row is rejected
    assert "row 3: prompt='': must not be empty" in told.stderr
    assert told.stdout.splitlines()[:4] == [
        "rows    2, 1 with an init image; 1 rejected, 1 duplicate",
        "images  6 in 1 shard",
        "time    unknown: no worker",
        "size    unknown: no worker has announced the size of the images",
    ]
    found = json.loads(bulk_run(*options, "--json").stdout)
    assert (found["rows"], found["images"], found["seconds"]) == (2, 6, None)
    assert [row["row"] for row in found["rejected_rows"]] == [3]
    assert not (tmp_path / "data").exists()
    assert not (tmp_path / "store").exists()
    with producer.connection.runs_by_lane() as runs:
        assert runs.ids() == []
    refused = bulk_run("nowhere.csv", "data", "--dry-run")
    assert refused.returncode == 1


def test_objects_in_s3_are_read_one_by_one_by_pattern_and_by_prefix(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    with signed_s3() as s3:
        credentials = s3.credentials.environment()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in credentials.items():
                patch.setenv(name, value)
            store = open_store(s3.url("in"))
            store.put("rows/2.txt", b"two\n", "text/plain")
            store.put("rows/1.csv", b"prompt\none\n", "text/csv")
            store.put("rows/deep/3.txt", b"three\n", "text/plain")
            store.put("rows/readme.md", b"no table", "text/plain")
            stranger = b"prompt,image\na,/etc/logo.png\nb,./logo.png\nc,\n"
            store.put("stranger.csv", stranger, "text/csv")
        prompts = {
            "in/rows/1.csv": ["one"],
            "in/rows/*.txt": ["two"],
            "in/rows/": ["one", "two", "three"],
            "in/rows": ["one", "two", "three"],
        }
        for number, (place, expected) in enumerate(prompts.items()):
            folder = tmp_path / str(number)
            done = bulk_run(s3.url(place), folder, environment=credentials)
            assert done.returncode == 0, done.stderr
            assert [prompt for _, prompt in _planned(producer, folder)] == expected
        for place in ("in/rows/9.csv", "in/nothing/", "in/rows/*.parquet"):
            refused = bulk_run(s3.url(place), tmp_path / "x", environment=credentials)
            assert (refused.returncode, "no such object" in refused.stderr) == (1, True)
        assert not (tmp_path / "x").exists()
        (tmp_path / "logo.png").write_bytes(_png())
        done = bulk_run(s3.url("in/stranger.csv"), "stranger", environment=credentials)
        assert done.stderr.count("must be an http(s) address, or the key or URL") == 2
        assert _planned(producer, tmp_path / "stranger") == [(2, "c")]  # none of its files was read


def test_a_dataset_below_its_input_in_s3_is_not_read_as_input(
    bulk_run: Bulk, producer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signed_s3() as s3:
        credentials = s3.credentials.environment()
        for name, value in credentials.items():
            monkeypatch.setenv(name, value)
        store = open_store(s3.url("in"))
        store.put("rows/a.jsonl", b'"a"\n', "text/plain")
        store.put("rows/run-10/b.txt", b"b\n", "text/plain")
        place, expected = s3.url("in/rows/run-1"), [(0, "a"), (1, "b")]
        for input_ in (s3.url("in/rows/"), s3.url("in/rows")):
            done = bulk_run(input_, place, environment=credentials)
            assert done.returncode == 0, done.stderr
        store.delete(f"rows/run-1/{PLAN}")  # as if the first command had died before it was written
        assert bulk_run(s3.url("in/rows/"), place, environment=credentials).returncode == 0
        run = producer.find_bulk(place)
        assert [(row["row"], row["prompt"]) for row in _rows(run)] == expected
        for pattern in ("in/rows/*/*.jsonl", "in/rows/run-1/*/*.jsonl"):
            refused = bulk_run(s3.url(pattern), place, environment=credentials)
            assert "there is no such object" in refused.stderr
        other = s3.url("in/other")
        assert (
            bulk_run(s3.url("in/rows/run-1/plan/"), other, environment=credentials).returncode == 0
        )
        assert [row["prompt"] for row in _rows(producer.find_bulk(other))] == ["a", "b"]


def test_options_of_latents_hold_for_all_rows_and_none_leaves_latents(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "a.safetensors").write_bytes(save({"latents": np.zeros((1, 4, 8, 8), "float32")}))
    (tmp_path / "rows.csv").write_text("prompt,latents\na,\nb,https://example.org/b\n")
    options = ("--latents", "./a.safetensors", "--denoising-start", 0.8)
    told = bulk_run("rows.csv", "data", *options, "--dry-run").stdout.splitlines()
    assert told[0] == "rows    2, 2 with latents; 0 rejected, 0 duplicate"
    done = bulk_run("rows.csv", "data", *options)
    assert done.returncode == 0, done.stderr
    run = producer.find_bulk(str(tmp_path / "data"))
    parameters = run.plan.parameters
    assert str(parameters.latents).startswith("inputs/")
    assert parameters.denoising_start == 0.8
    assert [row.get("latents") for row in _rows(run)] == [None, "https://example.org/b"]
    refused = bulk_run("rows.csv", "other", "--denoising-end", 0.8)
    assert refused.returncode == 1
    assert refused.stderr.startswith("imagefleet: denoising_end=0.8: leaves latents, and a dataset")


def _png() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    return buffer.getvalue()


def test_a_dataset_of_the_hub_is_read_as_a_stream_with_its_images(
    bulk_run: Bulk, producer: Client, tmp_path: Path, settings: dict[str, str]
) -> None:
    hub = tmp_path / "hub"
    (hub / "data").mkdir(parents=True)
    rows = [
        {"text": f"prompt {n}", "image": {"bytes": _png(), "path": f"{n}.png"}} for n in range(3)
    ]
    features = {"text": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pyarrow.Table.from_pylist(rows).replace_schema_metadata(about)
    parquet.write_table(table, hub / "data" / "test-00000-of-00001.parquet")
    store = settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://")
    Path(store).mkdir()
    with serve_dataset("somebody/images", hub, tmp_path / "home") as environment:
        address = "hf://datasets/somebody/images:test"
        options = (address, "data", "--column", "prompt=text")
        done = bulk_run(*options, environment=environment)
        assert done.returncode == 0, done.stderr
        run = producer.find_bulk(str(tmp_path / "data"))
        assert [row["prompt"] for row in _rows(run)] == [row["text"] for row in rows]
        assert (run.plan.input_images, run.plan.source.name) == (3, address)
        assert len(files_below(Path(store))) == 1  # three rows with one image
        again = bulk_run(*options, environment=environment)
        assert again.returncode == 0, again.stderr
        text = bulk_run(
            *options[:1], "text", *options[2:], "--ignore-column", "image", environment=environment
        )
        assert text.returncode == 0, text.stderr
        assert producer.find_bulk(str(tmp_path / "text")).plan.input_images == 0
        for wrong in ("hf://datasets/somebody/images:nosplit", "hf://datasets/somebody/nothing"):
            refused = bulk_run(wrong, "x", "--column", "prompt=text", environment=environment)
            assert refused.returncode == 1
            assert refused.stderr.splitlines()[-1].startswith("imagefleet: input=")


def test_image_files_of_the_hub_are_read_and_its_failure_in_the_middle_is_one_sentence(
    bulk_run: Bulk, producer: Client, tmp_path: Path, settings: dict[str, str]
) -> None:
    hub = tmp_path / "hub"
    (hub / "train").mkdir(parents=True)
    for n in range(2):
        (hub / "train" / f"{n}.png").write_bytes(_png())
    lines = [json.dumps({"file_name": f"{n}.png", "prompt": f"prompt {n}"}) for n in range(2)]
    (hub / "train" / "metadata.jsonl").write_text("\n".join(lines))
    store = Path(settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://"))
    store.mkdir()
    address = "hf://datasets/somebody/images"
    with serve_dataset("somebody/images", hub, tmp_path / "home") as environment:
        done = bulk_run(address, "data", environment=environment)
        assert done.returncode == 0, done.stderr
        assert _planned(producer, tmp_path / "data") == [(0, "prompt 0"), (1, "prompt 1")]
        [image] = files_below(store / "inputs")
        assert image.read_bytes() == _png()
        code = (
            "import datasets; each = datasets.IterableDataset.__iter__\n"
            "def fail(rows):\n"
            "    yield next(each(rows))\n"
            "    raise ConnectionError('the Hub is away')\n"
            "datasets.IterableDataset.__iter__ = fail\n"
        )
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "sitecustomize.py").write_text(code)
        failed = bulk_run(
            address, "x", environment={**environment, "PYTHONPATH": str(tmp_path / "lib")}
        )
    assert failed.returncode == 1
    assert "Traceback" not in failed.stderr
    [line] = failed.stderr.splitlines()[-1:]
    reason = "cannot be read from row 1 on: the Hub is away; run the same command again"
    assert line == f"imagefleet: {address} {reason}"


def test_paths_of_other_files_in_a_dataset_of_the_hub_are_never_opened(
    bulk_run: Bulk, producer: Client, tmp_path: Path, settings: dict[str, str]
) -> None:
    (tmp_path / "secret.png").write_bytes(_png())
    hub = tmp_path / "hub"
    (hub / "data").mkdir(parents=True)
    paths = [
        f"{tmp_path}/secret.png",
        f"file://{tmp_path}/secret.png",
        f"file://{tmp_path}/secret.png::hf://datasets/somebody/images@main/a",
        "hf://datasets/somebody/private@main/a.png",
    ]
    rows = [{"prompt": "a", "image": {"bytes": None, "path": path}} for path in paths]
    features = {"prompt": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    schema = pyarrow.schema([("prompt", pyarrow.string()), ("image", image)], metadata=about)
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    parquet.write_table(table, hub / "data" / "train-00000-of-00001.parquet")
    with serve_dataset("somebody/images", hub, tmp_path / "home") as environment:
        done = bulk_run("hf://datasets/somebody/images", "data", environment=environment)
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("must be an http(s) address, or the key or URL") == 2
    planned = [row["image"] for row in _rows(producer.find_bulk(str(tmp_path / "data")))]
    assert planned == paths[1:3]  # as texts: a worker reads only those of the fleet's store
    assert not Path(settings["IMAGEFLEET_STORAGE_URL"].removeprefix("file://")).exists()


def test_without_the_library_a_dataset_of_the_hub_is_refused_in_one_sentence(
    bulk_run: Bulk, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "datasets.py").write_text("raise ImportError(name='datasets')")
    refused = bulk_run(
        "hf://datasets/a/b", "data", environment={"PYTHONPATH": str(tmp_path / "lib")}
    )
    [line] = refused.stderr.splitlines()
    assert line == (
        "imagefleet: hf:// needs datasets; install imagefleet with its extras: "
        'pip install "imagefleet-….whl[dataset,hub]" (README.md)'
    )


@pytest.mark.parametrize("url", ["hf://a/b", "hf://datasets/", "hf://datasets/a/b c", "s3://"])
def test_an_address_that_is_none_is_refused(producer: Client, tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        producer.bulk(url, tmp_path / "data")
    assert refused.value.field == "input"
    assert not (tmp_path / "data" / PLAN).exists()


def test_prompts_of_other_tools_are_read_with_one_warning_a_file(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text(
        "--prompt 'a cat' --steps 7 --subseed_strength 0.3\n" * 2 + "plain\n"
    )
    done = bulk_run("a.txt", "data")
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.splitlines().count(
            "a.txt: left out, because it has no equal here: subseed_strength=0.3"
        )
        == 1
    )
    rows = _rows(producer.find_bulk(str(tmp_path / "data")))
    assert [(row["prompt"], row.get("num_inference_steps")) for row in rows] == [
        ("a cat", 7),
        ("a cat", 7),
        ("plain", None),
    ]
    refused = bulk_run("a.txt", "other", "--steps", "5")
    assert refused.returncode == 2
    assert "--steps is called --num-inference-steps here" in refused.stderr


def test_the_images_of_a_run_are_the_input_of_the_next(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for seed in (1, 2):
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", f"a cat\nSteps: 5, CFG scale: 7, Seed: {seed}")
        Image.new("RGB", (8, 8)).save(folder / f"{seed}.png", pnginfo=info)
    assert bulk_run("images", "data").returncode == 0
    run = producer.find_bulk(str(tmp_path / "data"))
    assert [(row["prompt"], row["seed"]) for row in _rows(run)] == [("a cat", 1), ("a cat", 2)]
    assert run.plan.source.name == "images"
    (folder / "1.png").write_bytes((folder / "2.png").read_bytes())
    assert "row 0, 'a cat', has another seed now" in bulk_run("images", "data").stderr


def test_alternatives_are_expanded_and_rows_are_appended_by_options(
    bulk_run: Bulk, producer: Client, tmp_path: Path
) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "color.txt").write_text("red\nblue\n")
    (tmp_path / "a.txt").write_text("a __color__ {car|bus}\n")
    options = ("--wildcards", "words", "--alternatives", "combinatorial")
    assert bulk_run("a.txt", "data", *options).returncode == 0
    four = [(0, "a red car"), (1, "a red bus"), (2, "a blue car"), (3, "a blue bus")]
    assert _planned(producer, tmp_path / "data") == four
    (tmp_path / "b.txt").write_text("a boat\n")
    refused = bulk_run("a.txt", "b.txt", "data", *options)
    assert (refused.returncode, "--append" in refused.stderr) == (1, True)
    done = bulk_run("a.txt", "b.txt", "data", *options, "--append")
    assert done.returncode == 0, done.stderr
    assert _planned(producer, tmp_path / "data") == [*four, (4, "a boat")]
    dry = bulk_run("a.txt", "b.txt", "a.txt", "data", *options, "--append", "--dry-run")
    assert "new     4 images; the others are planned already" in dry.stdout


def test_images_and_saved_datasets_in_s3_are_read(
    bulk_run: Bulk, producer: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets.DatasetDict(train=datasets.Dataset.from_dict({"prompt": ["a", "b"]})).save_to_disk(
        tmp_path / "saved"
    )
    with signed_s3() as s3:
        credentials = s3.credentials.environment()
        for name, value in credentials.items():
            monkeypatch.setenv(name, value)
        store = open_store(s3.url("in"))
        for path in files_below(tmp_path / "saved"):
            key = path.relative_to(tmp_path).as_posix()
            store.put(key, path.read_bytes(), "application/octet-stream")
        image, info = io.BytesIO(), PngImagePlugin.PngInfo()
        info.add_text("parameters", "a cat\nSteps: 5, CFG scale: 7, Seed: 3")
        Image.new("RGB", (8, 8)).save(image, "PNG", pnginfo=info)
        for name in ("1.png", "2.png"):
            store.put(f"images/{name}", image.getvalue(), "image/png")
        places = {
            "in/images/*.png": ["a cat", "a cat"],
            "in/images/1.png": ["a cat"],
            "in/saved": ["a", "b"],
        }
        for number, (place, expected) in enumerate(places.items()):
            done = bulk_run(s3.url(place), str(number), environment=credentials)
            assert done.returncode == 0, done.stderr
            found = [prompt for _, prompt in _planned(producer, tmp_path / str(number))]
            assert found == expected
        splits = json.dumps({"splits": ["train", "test"]}).encode()
        store.put("saved/dataset_dict.json", splits, "application/json")
        refused = bulk_run(s3.url("in/saved/"), "other", environment=credentials)
        assert "is a saved dataset with the splits train, test" in refused.stderr

"""Prompts as AUTOMATIC1111's web UI, ComfyUI and others write them are translated, or named.

The texts are those of the tools' own documents; the images are written by Pillow.
"""

import contextlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image, PngImagePlugin

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.bulk.rows import RejectedRow
from imagefleet.producer.commands.submit import submit
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.images.encode import encode
from tests.support.plans import plan_rows, planned_rows

LINES = """\
--prompt "photo of sunset"
--prompt "photo of sunset" --negative_prompt "orange, pink, red, sea, water, lake" --width 1024 \
--height 768 --sampler_name "DPM++ 2M Karras" --steps 10 --batch_size 2 --cfg_scale 3 --seed 9
--prompt "photo of winter mountains" --steps 7 --sampler_name "DDIM"

--prompt "photo of winter mountains" --width 1024
photo of autumn
"""
"""The example of https://github.com/AUTOMATIC1111/stable-diffusion-webui/wiki/Features, with a
blank line and a plain prompt."""
ROWS_OF_LINES = [
    {"prompt": "photo of sunset"},
    {
        "prompt": "photo of sunset",
        "negative_prompt": "orange, pink, red, sea, water, lake",
        "width": "1024",
        "height": "768",
        "scheduler": "dpmsolver++_karras",
        "num_inference_steps": "10",
        "num_images_per_prompt": "2",
        "guidance_scale": "3",
        "seed": 9,
    },
    {"prompt": "photo of winter mountains", "num_inference_steps": "7", "scheduler": "ddim"},
    None,
    {"prompt": "photo of winter mountains", "width": "1024"},
    "photo of autumn",
]
INFOTEXT = """\
girl with an artist's beret, determined, blue eyes, desert scene, computer monitors, heavy makeup, \
by Alphonse Mucha and Charlie Bowater, ((eyeshadow)), (coquettish), detailed, intricate
Negative prompt: ugly, fat, obese, chubby, (((deformed))), [blurry], bad anatomy, disfigured, \
poorly drawn face, mutation, mutated, (extra_limb), (ugly), (poorly drawn hands), messy drawing
Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 965400086, Size: 512x768, Model hash: 45dee52b"""
"""The example in modules/infotext_utils.py, with another height."""
ROW_OF_INFOTEXT = {
    "prompt": INFOTEXT.split("\n")[0],
    "negative_prompt": INFOTEXT.split("\n")[1].removeprefix("Negative prompt: "),
    "num_inference_steps": "20",
    "scheduler": "euler_ancestral",
    "guidance_scale": "7",
    "seed": 965400086,
    "width": 512,
    "height": 768,
}
WORKFLOW: dict[str, Any] = {
    "3": {
        "class_type": "KSampler",
        "inputs": {
            "cfg": 8,
            "denoise": 1,
            "latent_image": ["5", 0],
            "model": ["4", 0],
            "negative": ["7", 0],
            "positive": ["6", 0],
            "sampler_name": "euler",
            "scheduler": "normal",
            "seed": 8566257,
            "steps": 20,
        },
    },
    "4": {
        "class_type": "CheckpointLoaderSimple",
        "inputs": {"ckpt_name": "v1-5-pruned-emaonly.safetensors"},
    },
    "5": {
        "class_type": "EmptyLatentImage",
        "inputs": {"batch_size": 1, "height": 512, "width": 768},
    },
    "6": {
        "class_type": "CLIPTextEncode",
        "inputs": {"clip": ["4", 1], "text": "masterpiece best quality girl"},
    },
    "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "bad hands"}},
    "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]}},
}
"""The workflow in script_examples/basic_api_example.py of ComfyUI, with another width."""
ROW_OF_WORKFLOW = {
    "prompt": "masterpiece best quality girl",
    "negative_prompt": "bad hands",
    "seed": 8566257,
    "num_inference_steps": 20,
    "guidance_scale": 8,
    "scheduler": "euler",
    "width": 768,
    "height": 512,
    "num_images_per_prompt": 1,
}


def _read(path: Path | str, input_format: str | None = None) -> list[Any]:
    found: list[Any] = []
    for source in find_sources(path, input_format):
        with source.open() as table:
            found += table.rows
    return found


def _line(tmp_path: Path, line: str) -> Any:
    (tmp_path / "a.txt").write_text(line)
    [row] = _read(tmp_path / "a.txt")
    return row


def test_lines_of_options_are_read_as_the_script_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    assert _read(tmp_path / "a.txt") == ROWS_OF_LINES
    assert _read(tmp_path / "a.txt", "a1111") == ROWS_OF_LINES


def test_a_row_of_options_becomes_a_row_of_a_plan(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    store = MemoryStore()
    plan = plan_rows(tmp_path / "a.txt", store)
    rows = {row.row: row for row in planned_rows(store, plan)}
    assert rows.keys() == {0, 1, 2, 5}  # width alone is no size
    assert rows[1].seed == 9
    assert rows[1].guidance_scale == 3.0
    assert rows[1].num_images_per_prompt == 2
    assert [(shard.height, shard.width) for shard in plan.shards] == [(None, None), (768, 1024)]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (
            "--prompt a cat on a mat --steps 3",
            {"prompt": "a cat on a mat", "num_inference_steps": "3"},
        ),
        ("--steps 3 --prompt a", {"prompt": "a", "num_inference_steps": "3"}),
        ("--prompt a --seed -1", {"prompt": "a"}),
        ("--prompt a --n_iter 3 --batch_size 2", {"prompt": "a", "num_images_per_prompt": 6}),
        ("--prompt a --size 512x768", {"prompt": "a", "width": 512, "height": 768}),
        ("--prompt 'a <lora:style:0.8>, b'", {"prompt": "a, b", "loras": "style:0.8"}),
        ("--prompt a --do_not_save_grid true --outpath_samples x", {"prompt": "a"}),
        ("--prompt a --restore_faces false", {"prompt": "a"}),
        ("--prompt a --num_inference_steps 3", {"prompt": "a", "num_inference_steps": "3"}),
    ],
)
def test_an_option_is_translated(tmp_path: Path, line: str, row: dict[str, Any]) -> None:
    assert _line(tmp_path, line) == row


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        ("--prompt a --negativ_prompt b", "--negativ_prompt", "is no option"),
        ("--prompt", "--prompt", "has no value"),
        ('--prompt "a', "line", "quotes do not match"),
        ("--steps 3 4 --prompt a", "line", "where an option must begin"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, line: str, field: str, reason: str) -> None:
    row = _line(tmp_path, line)
    assert isinstance(row, RejectedRow)
    assert row.field == field
    assert reason in row.reason


def test_what_has_no_equal_is_named_once_a_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = "--subseed 5 --subseed_strength 0.3"
    line = f"--prompt a {seeds} --sampler_name 'DPM++ SDE Karras' --sd_model x\n"
    (tmp_path / "a.txt").write_text(line * 3)
    with caplog.at_level(logging.WARNING):
        assert _read(tmp_path / "a.txt") == [{"prompt": "a"}] * 3
    [message] = caplog.messages
    for part in ("a.txt", "subseed_strength=0.3", "sampler_name=DPM++ SDE Karras", "model=x"):
        assert part in message


@pytest.mark.parametrize(
    ("suffix", "option"),
    [("", None), (" --ar 16:9", "--ar"), (", x --steps 5", "--steps"), (" -- no --foo", None)],
)
def test_options_behind_a_prompt_are_read_as_words_with_a_warning(
    tmp_path: Path, suffix: str, option: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert _line(tmp_path, f"a well-known cat{suffix}") == f"a well-known cat{suffix}"
    expected = [] if option is None else [f"a.txt: {option} behind a prompt is read as its words"]
    assert caplog.messages == expected


@pytest.mark.parametrize("line", ["-- a dash, and a cat", "--- rule ---", "-5 degrees", "Night"])
def test_a_dash_alone_is_no_option(tmp_path: Path, line: str) -> None:
    assert _line(tmp_path, line) == line


def test_the_named_type_txt_takes_options_for_text_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("--prompt a\n--prompt b\n")
    assert _read(tmp_path / "a.txt", "txt") == ["--prompt a", "--prompt b"]
    [message] = caplog.messages
    assert "--input-format a1111" in message


def test_infotexts_are_read_block_by_block(tmp_path: Path) -> None:
    second = "a\n\nb, <lora:x:1>\nSteps: 5, Sampler: DPM++ 2M, Schedule type: Karras, Seed: 1"
    (tmp_path / "a.txt").write_text(f"{INFOTEXT}\n\n{second}\n")
    first, other = _read(tmp_path / "a.txt")
    assert first == ROW_OF_INFOTEXT
    assert other == {
        "prompt": "a\n\nb,",
        "loras": "x:1",
        "num_inference_steps": "5",
        "scheduler": "dpmsolver++_karras",
        "seed": 1,
    }


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("Clip skip: 2", "clip_skip", 1),  # the web UI counts the last layer that is used
        ("Clip skip: 1", "clip_skip", None),
        ("Sampler: DPM++ 2M Karras", "scheduler", "dpmsolver++_karras"),
        ("Sampler: PLMS", "scheduler", "pndm"),
        ("Sampler: DPM++ 3M SDE", "scheduler", None),
        ("Batch size: 4, Batch pos: 2", "num_images_per_prompt", None),
        ('Batch: "image 2 of 4"', "image_index", 1),
    ],
)
def test_a_setting_of_an_infotext_is_translated(
    tmp_path: Path, setting: str, name: str, value: object
) -> None:
    row = _line(tmp_path, f"a\nSteps: 5, CFG scale: 7, Seed: 3, {setting}")
    assert row.get(name) == value
    assert row["guidance_scale"] == "7"


def test_an_infotext_behind_prompts_refuses_the_file(tmp_path: Path) -> None:
    text = "a cat\n" * 20_000 + INFOTEXT
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(InvalidRequest, match="prompts first and an infotext later"):
        _read(tmp_path / "a.txt")


@pytest.mark.parametrize("text", ['{"prompt": "a"}\n', '["a", "b"]', '[{"prompt": "a"}]'])
def test_json_in_a_text_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(InvalidRequest, match="--input-format jsonl"):
        _read(tmp_path / "a.txt")
    assert _read(tmp_path / "a.txt", "txt") == [text.strip()]


def test_requests_to_the_api_are_read_by_the_name_of_the_tool(tmp_path: Path) -> None:
    request = {"prompt": "a", "steps": 5, "cfg_scale": 7.5, "sampler_name": "Euler", "seed": -1}
    (tmp_path / "a.txt").write_text(json.dumps(request))
    [row] = _read(tmp_path / "a.txt", "a1111")
    assert row == {
        "prompt": "a",
        "num_inference_steps": 5,
        "guidance_scale": 7.5,
        "scheduler": "euler",
    }


def test_the_scale_of_other_tools_is_converted_for_a_model_that_counts_from_0(
    tmp_path: Path,
) -> None:
    (tmp_path / "api.txt").write_text(json.dumps({"prompt": "a", "cfg_scale": 5}))
    (tmp_path / "info.txt").write_text("a\nSteps: 8, CFG scale: 1, Seed: 7, Size: 64x64")
    (tmp_path / "ours.txt").write_text('--prompt "a" --guidance_scale 5')
    (tmp_path / "wrong.txt").write_text(json.dumps({"prompt": "a", "cfg_scale": "much"}))
    expected: dict[str, object] = {"api": 4.0, "info": 0.0, "ours": "5", "wrong": "much"}
    for name, scale in expected.items():
        [source] = find_sources(tmp_path / f"{name}.txt", "a1111", unguided_scale=0.0)
        with source.open() as table:
            [row] = table.rows
        assert isinstance(row, dict)
        assert row["guidance_scale"] == scale, name


def _png(path: Path, **texts: str) -> None:
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)


def _zipped_png(path: Path, **texts: str) -> None:
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_text(name, text, zip=True)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)


def _international_png(path: Path, **texts: str) -> None:
    info = PngImagePlugin.PngInfo()
    for name, text in texts.items():
        info.add_itxt(name, text, "en", "x", zip=True)
    Image.new("RGB", (8, 8)).save(path, pnginfo=info)


def _with_exif(encoding: str, order: bytes) -> Callable[..., None]:
    def write(path: Path, parameters: str) -> None:
        exif = Image.Exif()
        exif.endian = "<" if order == b"II" else ">"
        comment = b"UNICODE\0" + parameters.encode(encoding)
        exif.get_ifd(0x8769)[0x9286] = comment
        Image.new("RGB", (8, 8)).save(path, exif=exif)

    return write


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.png", _png),
        ("a.PNG", _zipped_png),
        ("a.png", _international_png),
        ("a.jpg", _with_exif("utf-16-be", b"MM")),
        ("a.jpeg", _with_exif("utf-16-le", b"II")),
        ("a.webp", _with_exif("utf-16-be", b"II")),
    ],
)
@pytest.mark.parametrize("prompt", ["a cat", "猫、犬\nund Füße"])
def test_infotext_is_read_out_of_images(
    tmp_path: Path, name: str, write: Callable[..., None], prompt: str
) -> None:
    write(tmp_path / name, parameters=f"{prompt}\nSteps: 5, Seed: 3, CFG scale: 7")
    [row] = _read(tmp_path / name)
    expected = {"num_inference_steps": "5", "seed": 3, "guidance_scale": "7"}
    assert row == {"prompt": prompt, **expected}


@pytest.mark.parametrize("file_format", ["png", "jpeg", "webp"])
def test_our_own_images_make_the_same_image_again(tmp_path: Path, file_format: str) -> None:
    metadata = {
        "prompt": "a cat, {or} a dog: 猫",
        "negative_prompt": "blue",
        "num_inference_steps": 12,
        "guidance_scale": 6.5,
        "scheduler": "euler_ancestral",
        "seed": 77,
        "num_images_per_prompt": 4,
        "image_index": 2,
        "width": 8,
        "height": 16,
        "clip_skip": 1,
        "model": "m",
        "model_digest": "sha256:00",
        "versions": {"imagefleet": "1"},
    }
    pixels = np.zeros((16, 8, 3), np.uint8)
    (tmp_path / f"a.{file_format}").write_bytes(encode(pixels, file_format, metadata).data)
    store = MemoryStore()
    plan = plan_rows(tmp_path / f"a.{file_format}", store)
    [row] = planned_rows(store, plan)
    request = plan.request(plan.shards[0], row)
    for name in metadata.keys() - {"versions", "model", "model_digest"}:
        assert getattr(request, name) == metadata[name], name


def test_a_folder_of_images_is_one_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    _png(folder / "b.png", parameters="b\nSteps: 5, Seed: 3, Model: x, Hires upscale: 2")
    _png(folder / "a.png", prompt=json.dumps(WORKFLOW), workflow="{}")
    _png(folder / "c.png")
    (folder / "d.jpg").write_bytes(b"no image")
    [source] = find_sources(folder)
    with source.open() as table:
        workflow, infotext, silent, broken = table.rows
        assert (table.name, len(table.sha256() or "")) == ("images", 64)
    assert workflow == ROW_OF_WORKFLOW
    assert infotext == {"prompt": "b", "num_inference_steps": "5", "seed": 3}
    assert isinstance(silent, RejectedRow)
    assert (silent.value, "says nothing" in silent.reason) == ("c.png", True)
    assert isinstance(broken, RejectedRow)
    assert (broken.value, "no PNG, JPEG or WebP" in broken.reason) == ("d.jpg", True)
    [message] = caplog.messages
    assert "images: left out" in message
    assert "model=v1-5-pruned-emaonly.safetensors, Hires upscale=2" in message


def test_images_beside_a_table_are_not_rows(tmp_path: Path) -> None:
    _png(tmp_path / "a.png", parameters="b\nSteps: 5, Seed: 3, CFG scale: 7")
    (tmp_path / "rows.csv").write_text("prompt,image\na,./a.png\n")
    assert _read(tmp_path) == [{"prompt": "a", "image": "./a.png"}]
    [row] = _read(str(tmp_path / "*.png"))
    assert row["prompt"] == "b"


@pytest.mark.parametrize("cut", [9, 20, 60])
def test_a_damaged_image_is_rejected(tmp_path: Path, cut: int) -> None:
    for name in ("a.png", "b.jpg", "c.webp"):
        write = _png if name == "a.png" else _with_exif("utf-16-be", b"MM")
        write(tmp_path / name, parameters="a\nSteps: 5, Seed: 3, CFG scale: 7")
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:cut])
        [row] = _read(tmp_path / name)
        assert isinstance(row, RejectedRow), name


@pytest.mark.parametrize("posted", [False, True])
def test_a_workflow_of_comfyui_is_read(
    tmp_path: Path, posted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = {"client_id": "x", "prompt": WORKFLOW} if posted else WORKFLOW
    (tmp_path / "a.json").write_text(json.dumps(workflow, indent=2))
    assert _read(tmp_path / "a.json") == [ROW_OF_WORKFLOW]
    [message] = caplog.messages
    assert "model=v1-5-pruned-emaonly.safetensors" in message
    assert _read(tmp_path / "a.json", "comfyui") == [ROW_OF_WORKFLOW]


def _changed(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return the workflow with other inputs of its nodes, or with other nodes."""
    workflow = json.loads(json.dumps(WORKFLOW))
    for name, inputs in changes.items():
        key = name.removeprefix("n")
        if "class_type" in inputs:
            workflow[key] = inputs
        else:
            workflow[key]["inputs"] |= inputs
    return workflow  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"n3": {"seed": 2**63 + 5}}, "seed", 5),
        (
            {"n3": {"sampler_name": "dpmpp_2m", "scheduler": "karras"}},
            "scheduler",
            "dpmsolver++_karras",
        ),
        ({"n3": {"sampler_name": "uni_pc"}}, "scheduler", "unipc"),
        ({"n5": {"batch_size": 4}}, "num_images_per_prompt", 4),
        (
            {
                "n6": {"text": ["10", 0]},
                "n10": {"class_type": "PrimitiveString", "inputs": {"value": "linked"}},
            },
            "prompt",
            "linked",
        ),
        (
            {
                "n6": {"clip": ["10", 0]},
                "n10": {
                    "class_type": "CLIPSetLastLayer",
                    "inputs": {"stop_at_clip_layer": -2, "clip": ["4", 1]},
                },
            },
            "clip_skip",
            1,
        ),
        (
            {
                "n3": {"model": ["10", 0]},
                "n10": {
                    "class_type": "LoraLoader",
                    "inputs": {
                        "lora_name": "sub\\style.safetensors",
                        "strength_model": 0.8,
                        "model": ["4", 0],
                    },
                },
            },
            "loras",
            "style:0.8",
        ),
    ],
)
def test_a_node_of_a_workflow_is_translated(
    tmp_path: Path, changes: dict[str, dict[str, Any]], name: str, value: object
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_changed(**changes)))
    [row] = _read(tmp_path / "a.json")
    assert row[name] == value


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n3": {"denoise": 0.5}}, "denoise=0.5"),
        ({"n10": WORKFLOW["3"]}, "KSampler, KSampler"),
        ({"n3": {"class_type": "SamplerCustom", "inputs": {}}}, "it has SamplerCustom"),
        ({"n5": {"class_type": "VAEEncode", "inputs": {}}}, "VAEEncode as latent_image"),
        ({"n6": {"class_type": "ConditioningCombine", "inputs": {}}}, "ConditioningCombine as"),
        ({"n6": {"text": ["8", 0]}}, "computes text with VAEDecode"),
        ({"n3": {"denoise": "half"}}, "has a value of another kind"),
        ({"n3": {"denoise": {}}}, "has no value as denoise"),
        ({"n6": {"text": ["6", 0]}}, "has no value as text"),
    ],
)
def test_a_workflow_that_does_more_is_rejected_by_the_node(
    tmp_path: Path, changes: dict[str, dict[str, Any]], reason: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(_changed(**changes)))
    [row] = _read(tmp_path / "a.json")
    assert isinstance(row, RejectedRow)
    assert reason in row.reason


def test_nodes_that_have_no_equal_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    upscale = {"class_type": "ImageUpscaleWithModel", "inputs": {"image": ["8", 0]}}
    free_u = {"class_type": "FreeU", "inputs": {"model": ["4", 0]}}
    changes: dict[str, dict[str, Any]] = {
        "n3": {"model": ["10", 0]},
        "n10": free_u,
        "n11": upscale,
    }
    (tmp_path / "a.json").write_text(json.dumps(_changed(**changes)))
    assert _read(tmp_path / "a.json") == [ROW_OF_WORKFLOW]
    [message] = caplog.messages
    assert "node FreeU, node ImageUpscaleWithModel, model=" in message


def test_the_format_of_the_editor_is_rejected(tmp_path: Path) -> None:
    editor = {"last_node_id": 9, "nodes": [{"id": 1, "type": "KSampler"}], "links": []}
    (tmp_path / "a.json").write_text(json.dumps(editor))
    [row] = _read(tmp_path / "a.json")
    assert isinstance(row, RejectedRow)
    assert "Export (API)" in row.reason


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("steps", "is called num_inference_steps here"),
        ("cfg_scale", "is called guidance_scale here"),
        ("sampler_name", "is called scheduler here (Euler a is euler_ancestral)"),
        ("n", "is called num_images_per_prompt here"),
        ("size", "is called height and width here"),
        ("restore_faces", "has no equal here"),
    ],
)
def test_a_parameter_of_another_tool_is_refused_with_its_name_here(name: str, hint: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        JobRequest.parse({"prompt": "a", name: 1})
    assert hint in str(refused.value)
    with pytest.raises(InvalidRequest) as refused:
        plan_rows(["a"], MemoryStore(), None, **{name: 1})
    assert hint in str(refused.value)


def test_an_option_of_another_tool_is_refused_with_its_name_here() -> None:
    done = CliRunner().invoke(submit, ["a", "--steps", "3"])
    assert done.exit_code == 2
    assert "--steps is called --num-inference-steps here" in done.output
    assert "No such option '--stepps'" in CliRunner().invoke(submit, ["a", "--stepps", "3"]).output


@pytest.mark.parametrize("name", ["Euler a", "EulerAncestralDiscreteScheduler", "k_euler_a"])
def test_a_scheduler_of_another_tool_is_refused_with_its_name_here(name: str) -> None:
    offer = Offer(
        model="m",
        digest="sha256:1",
        shapes=((8, 8),),
        schedulers=("euler_ancestral",),
        max_num_inference_steps=9,
        num_inference_steps=2,
        guidance_scale=1.0,
        scheduler="euler_ancestral",
    )
    with pytest.raises(InvalidRequest, match="is called euler_ancestral here"):
        admit(JobRequest.parse({"prompt": "a", "scheduler": name}), {"default": offer})


@pytest.mark.parametrize("column", ["Prompt", "caption", "text", "positive prompt"])
def test_the_column_that_may_hold_prompts_is_named(tmp_path: Path, column: str) -> None:
    (tmp_path / "a.csv").write_text(f"note,{column}\n1,a\n")
    with pytest.raises(InvalidRequest) as refused:
        plan_rows(tmp_path / "a.csv", MemoryStore())
    assert f"columns={{'prompt': '{column}'}}" in str(refused.value)


def test_a_column_of_another_tool_is_refused_and_an_ordinary_word_is_copied() -> None:
    with pytest.raises(InvalidRequest, match="--column num_inference_steps=steps"):
        plan_rows([{"prompt": "a", "steps": 5}], MemoryStore())
    store = MemoryStore()
    plan = plan_rows([{"prompt": "a", "size": "large", "caption": "b"}], store)
    assert planned_rows(store, plan)[0].extra == {"size": "large", "caption": "b"}


def test_an_open_file_of_options_is_read_as_its_path_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LINES)
    with (tmp_path / "a.txt").open() as file:
        [source] = find_sources(file)
        with source.open() as table:
            assert list(table.rows) == ROWS_OF_LINES


@pytest.mark.parametrize(
    "text",
    [
        "a\nSteps: 5, Seed: 3, " + "x" * 1_000_000 + ", CFG scale: 7",
        "a\nSteps: 5, Seed: 3, CFG scale: 7, x: " + '"' * 1_000_001,
        "--prompt '" + " " * 1_000_000 + "<lora:'",
        "--prompt '" + "(" * 60_000 + ":1'",
        "--prompt '" + " " * 60_000 + "<lora:'",
        "--prompt a --size " + "9" * 10_000 + "x8",
        "--prompt a --n_iter " + "9" * 10_000 + " --batch_size 2",
        "--prompt a --seed " + "9" * 10_000,
        "a --" * 250_000,
    ],
)
def test_a_long_hostile_line_ends_soon(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    started = time.process_time()
    with contextlib.suppress(InvalidRequest):
        plan_rows(tmp_path / "a.txt", MemoryStore())
    assert time.process_time() - started < 30


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.webp"])
def test_damaged_bytes_of_images_only_reject_their_rows(tmp_path: Path, name: str) -> None:
    write = _international_png if name == "a.png" else _with_exif("utf-16-le", b"II")
    write(tmp_path / name, parameters="a\nSteps: 5, Seed: 3, CFG scale: 7")
    data = (tmp_path / name).read_bytes()
    random = np.random.default_rng(1)
    for _ in range(500):
        damaged = bytearray(data)
        for at in random.integers(0, len(data), 3):
            damaged[at] = random.integers(0, 256)
        (tmp_path / name).write_bytes(damaged)
        [row] = _read(tmp_path / name)
        assert isinstance(row, dict | RejectedRow)

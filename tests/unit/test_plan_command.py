"""The command `imagefleet-worker plan` reads configs only and prints a table or JSON."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from imagefleet.worker.commands.cli import main
from imagefleet.worker.process.exit_codes import ExitCode
from tests.unit.engine.parity import FOLDER
from tools.parity.published import PUBLISHED
from tools.tpu.models import write_configs


def run_plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def test_a_folder_without_weights_is_planned_as_a_table_and_as_json(tmp_path: Path) -> None:
    for config in (FOLDER / "older").rglob("*.json"):
        copied = tmp_path / config.relative_to(FOLDER / "older")
        copied.parent.mkdir(exist_ok=True)
        copied.write_bytes(config.read_bytes())
    model = ("--model", str(tmp_path), "--shapes", "64x64,128x64", "--topology", "v5e-4")
    [title, header, first, *lines] = run_plan(*model).stdout.splitlines()
    assert title.endswith(
        "at 64x64, 128x64 in bfloat16 on v5e-4: 4 devices, each with 15.75 GiB; batching=static"
    )
    assert header.split()[:3] == ["mesh", "per_device_batch", "images"]
    assert first.split()[:3] == ["data=4,model=1", "1", "4"]
    assert any("estimates" in line for line in lines)

    document = json.loads(run_plan(*model, "--json").stdout)
    assert document["topology"] == "v5e-4"
    assert document["num_inference_steps"] == 50
    assert document["estimated_images_per_second"] == {"64x64": None, "128x64": None}
    batches = document["batches"]
    assert [batch["mesh"] for batch in batches if batch["per_device_batch"] == 1] == [
        "data=4,model=1",
        "data=2,model=2",
        "data=1,model=4",
    ]
    for batch in batches:
        assert batch["needed_bytes"] == batch["weight_bytes"] + batch["workspace_bytes"]
        assert batch["fits"] == (batch["needed_bytes"] <= document["device_memory_bytes"])

    streams = json.loads(run_plan(*model, "--batching", "continuous", "--json").stdout)
    assert (document["batching"], streams["batching"]) == ("static", "continuous")
    for batch, stream in zip(batches, streams["batches"], strict=True):
        assert batch["workspace_bytes"] < stream["workspace_bytes"], "it decodes beside a step"


def test_small_numbers_have_digits_and_small_models_have_no_times() -> None:
    """The bundled model is so small that one digit after the point shows nothing of it."""
    [_, header, *lines] = run_plan("--topology", "v5e-8").stdout.splitlines()
    table = [line.split() for line in lines[: lines.index("")]]
    assert header.endswith("64x64 ms/step")
    assert all(row[-1] == "-" and float(row[3]) > 0 for row in table)
    assert not any("images a second" in line for line in lines)


def test_times_are_printed_for_stable_diffusion(tmp_path: Path) -> None:
    write_configs(PUBLISHED["sd14"], tmp_path)
    [_, _, first, *lines] = run_plan(
        "--model", str(tmp_path), "--shapes", "512x512", "--topology", "v5e-8"
    ).stdout.splitlines()
    # By the TPU compiler, a step takes 17.3 ms and the decoder 17.4 (docs/tpu.md).
    assert float(first.split()[-1]) == pytest.approx(17.3, rel=0.15)
    [rate] = re.findall(r"^512x512: about ([0-9.]+) images a second", "\n".join(lines), re.M)
    assert float(rate) == pytest.approx(8 / (50 * 0.0173 + 0.0174), rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--topology", "v9-8"), "topology='v9-8' is unknown; choose v2-8"),
        (("--topology", "v2-8", "--dtype", "float16"), "dtype='float16'"),
        (("--topology", "v2-8", "--shapes", "8x"), "'8x' is not an image size"),
        (("--topology", "v2-8", "--shapes", "63x64"), "--shapes: 63x64: height and width must be"),
        (("--topology", "v2-8", "--model", "/nowhere"), "/nowhere is not a folder"),
    ],
)
def test_an_error_is_one_line_that_names_the_value(
    arguments: tuple[str, ...], sentence: str
) -> None:
    ended = run_plan(*arguments)
    assert ended.exit_code == ExitCode.CONFIG
    [line] = ended.stderr.splitlines()
    assert line.startswith("imagefleet-worker: ")
    assert sentence in line


def test_flags_without_a_command_are_those_of_a_worker() -> None:
    ended = CliRunner().invoke(main, ["--devices", "0"])
    assert ended.exit_code == ExitCode.CONFIG
    assert "devices" in ended.stderr
    assert "--lease-s" in CliRunner().invoke(main, ["--model", "shapes", "--help"]).stdout

"""The TPU compiler accepts what a worker on a TPU host would run.

libtpu holds the compiler and runs on Linux machines without a TPU. `make long` installs it into
.libtpu where it can; elsewhere these tests are skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.tpu.compile_for_host import BY_XLA
from tools.tpu.__main__ import PROGRAMS, STREAM_PROGRAMS

LIBTPU = ROOT / ".libtpu"

pytestmark = pytest.mark.skipif(
    not (LIBTPU / ".installed").is_file(),
    reason="the TPU compiler is not installed; `make .libtpu/.installed` installs it on Linux",
)


def compile_for(host: str, what: str, *arguments: str) -> dict[str, str | None]:
    """Return for each thing that was compiled the compiler's error, or None."""
    path = os.pathsep.join([str(LIBTPU), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "tests.tpu.compile_for_host", what, host, *arguments],
        cwd=Path(ROOT),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    errors: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return errors


def refused(errors: dict[str, str | None]) -> dict[str, str]:
    return {name: error for name, error in errors.items() if error is not None}


@pytest.mark.parametrize("host", ["v2-8", "v5e-8"])
def test_every_attention_layer_of_the_published_models_compiles(host: str) -> None:
    errors = compile_for(host, "layers")
    assert len(errors) > 15
    assert refused(errors) == {}


@pytest.mark.parametrize("host", ["v2-8", "v4-8", "v5e-1", "v5p-8", "v6e-1"])
def test_the_kernel_for_wide_heads_compiles_with_a_mask(host: str) -> None:
    assert compile_for(host, "wide-heads") == dict.fromkeys(
        ("4608 in bfloat16", "4160 in bfloat16", "4160 in float32", "4429 in bfloat16")
    )


@pytest.mark.parametrize("host", ["v4-8", "v5e-8", "v6e-1"])
def test_the_convolution_kernels_compile(host: str) -> None:
    errors = compile_for(host, "convolutions")
    assert len(errors) == (6 if host == "v5e-8" else 8)
    # The weights of four phases with 512 channels take 8 MiB, and a core of v4 has 16.
    too_large = ("upsampling to a large map", "upsampling of a small map")
    assert refused(errors) == (dict.fromkeys(too_large, BY_XLA) if host == "v4-8" else {})


@pytest.mark.parametrize("host", ["v5e-1", "v6e-1"])
def test_a_transformer_block_compiles_with_its_kernels(host: str) -> None:
    assert compile_for(host, "transformer", "1") == {"block": None}


def test_devices_that_share_weights_have_the_kernels_too() -> None:
    assert compile_for("v5e-8", "transformer", "2") == {"block": None, "heads": None}


@pytest.mark.parametrize("host", ["v5e-1", "v6e-1"])
def test_the_blocks_of_klein_compile_with_the_kernel_for_wide_heads(host: str) -> None:
    assert compile_for(host, "flow-blocks") == {"DoubleBlock": None, "SingleBlock": None}


def test_the_step_of_stable_diffusion_compiles() -> None:
    assert compile_for("v5e-8", "published-step", "sd14") == {"sd14": None}


@pytest.mark.parametrize(
    ("host", "devices_per_copy"),
    [("v2-8", 1), ("v5e-8", 1), ("v5e-8", 2)],
)
def test_every_program_of_a_small_model_compiles(host: str, devices_per_copy: int) -> None:
    errors = compile_for(host, "programs", str(devices_per_copy))
    assert list(errors) == list(PROGRAMS)
    assert refused(errors) == {}


@pytest.mark.parametrize("host", ["v2-8", "v5e-8"])
def test_every_program_with_loras_and_long_prompts_compiles(host: str) -> None:
    errors = compile_for(host, "programs-with-loras")
    assert list(errors) == list(PROGRAMS)
    assert refused(errors) == {}


@pytest.mark.parametrize("host", ["v2-8", "v5e-8"])
@pytest.mark.parametrize(
    "checkpoint",
    [
        pytest.param("runwayml/stable-diffusion-inpainting", id="nine input channels"),
        pytest.param("timbrooks/instruct-pix2pix", id="three-way guidance"),
        pytest.param("diffusers/sdxl-instructpix2pix-768", id="three-way guidance, SDXL"),
        pytest.param("SimianLuo/LCM_Dreamshaper_v7", id="embedded guidance"),
        pytest.param("nota-ai/bk-sdm-tiny", id="three levels without a mid block"),
        pytest.param("segmind/SSD-1B", id="transformer layers counted by layer"),
        pytest.param("etri-vilab/koala-700m", id="SDXL without a mid block"),
        pytest.param("playgroundai/playground-v2.5-1024px-aesthetic", id="EDM"),
        pytest.param("stabilityai/stable-diffusion-xl-refiner-1.0", id="one encoder and scores"),
    ],
)
def test_every_program_of_a_well_known_structure_compiles(host: str, checkpoint: str) -> None:
    errors = compile_for(host, "known-programs", checkpoint)
    assert list(errors) == list(PROGRAMS)
    assert refused(errors) == {}


@pytest.mark.parametrize(
    ("host", "devices_per_copy"),
    [
        ("v2-8", 1),
        ("v5e-8", 1),
        ("v5e-8", 2),
    ],
)
def test_every_program_of_a_stream_compiles(host: str, devices_per_copy: int) -> None:
    errors = compile_for(host, "stream-programs", str(devices_per_copy))
    assert sorted(errors) == sorted(STREAM_PROGRAMS)
    assert refused(errors) == {}


@pytest.mark.parametrize(
    ("host", "choice", "error"),
    [
        ("v5e-8", "unpadded heads", "head_dim=160 should be a multiple of 128"),
        ("v2-8", "kernel in bfloat16", "E2001"),
    ],
)
def test_the_compiler_refuses_a_wrong_choice_in_the_small_model(
    host: str, choice: str, error: str
) -> None:
    assert error in (compile_for(host, "wrong", choice)[choice] or "")


@pytest.mark.parametrize("host", ["v2-8", "v3-8", "v4-8", "v5e-1", "v5p-8", "v6e-1"])
def test_the_memory_of_each_generation_is_what_its_compiler_allows(host: str) -> None:
    errors = compile_for(host, "memory")
    assert errors["9/10"] is None
    assert "RESOURCE_EXHAUSTED" in (errors["11/10"] or "")

"""Guidance with `guidance_rescale`, and which models take it.

`test_images_of_diffusers` compares whole images with diffusers.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.sampling.guidance import apply_guidance
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.write import write_configs

SHARES = np.array([0.0, 0.7, 1.0, 0.7], np.float32)
SCALES = np.array([7.5, 7.5, 3.0, 1.0], np.float32)
"""The last slot has no guidance, and so nothing to rescale."""


def _guided(
    outputs: NDArray[np.float32],
    shares: NDArray[np.float32],
    image_scales: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    scales = None if image_scales is None else jnp.asarray(image_scales)
    arrays = (jnp.asarray(outputs), jnp.asarray(SCALES), jnp.asarray(shares))
    return np.asarray(apply_guidance(*arrays, scales))


def _rescaled(
    guided: NDArray[np.float64], conditional: NDArray[np.float64], share: float
) -> NDArray[np.float64]:
    """Return what `rescale_noise_cfg` of diffusers returns for one slot, in float64."""
    scaled = guided * float(conditional.std(ddof=1) / guided.std(ddof=1))
    return np.asarray(share * scaled + (1 - share) * guided)


@pytest.mark.parametrize("rows", [2, 3])
def test_a_share_of_the_guided_output_gets_the_deviation_of_the_one_with_the_prompt(
    rows: int,
) -> None:
    outputs = np.random.default_rng(1).normal(0.3, 2, (4, rows, 8, 6, 4)).astype(np.float32)
    image_scales = np.full(4, 1.5, np.float32) if rows == 3 else None
    ours = _guided(outputs, SHARES, image_scales)
    for slot, (share, scale) in enumerate(zip(SHARES, SCALES, strict=True)):
        without, *between, conditional = outputs[slot].astype(np.float64)
        guided = without + scale * (conditional - without)
        if between:
            image = between[0]
            guided = without + scale * (conditional - image) + 1.5 * (image - without)
        expected = _rescaled(guided, conditional, share) if scale > 1 else conditional
        np.testing.assert_allclose(ours[slot], expected, rtol=1e-5, atol=1e-5)


def test_without_a_share_the_output_is_bit_equal_to_plain_guidance() -> None:
    outputs = np.random.default_rng(2).normal(size=(4, 2, 8, 8, 4)).astype(np.float32)
    ours = _guided(outputs, np.zeros(4, np.float32))
    without, conditional = outputs[:, 0], outputs[:, 1]
    scale = SCALES[:, None, None, None]
    plain = np.where(scale > 1, without + scale * (conditional - without), conditional)
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("timbrooks/instruct-pix2pix", False),
        ("runwayml/stable-diffusion-inpainting", False),
        ("diffusers/stable-diffusion-xl-1.0-inpainting-0.1", True),
        ("SimianLuo/LCM_Dreamshaper_v7", False),
        ("latent-consistency/lcm-sdxl (its UNet in SDXL)", False),
        ("diffusers/sdxl-instructpix2pix-768", True),
        ("ByteDance/Hyper-SD (its UNet in SDXL)", True),
    ],
)
def test_the_models_that_take_it_are_those_of_diffusers(
    name: str, expected: bool, tmp_path: Path
) -> None:
    write_configs(tmp_path, KNOWN[name])
    configs = Configs.read(CheckpointFiles(tmp_path))
    assert configs.rescales_guidance is expected


def test_the_pipeline_of_lcm_needs_a_unet_that_takes_the_guidance_scale(tmp_path: Path) -> None:
    write_configs(tmp_path, KNOWN["SimianLuo/LCM_Dreamshaper_v7"])
    config = tmp_path / "unet" / "config.json"
    fields = json.loads(config.read_text())
    del fields["time_cond_proj_dim"]
    config.write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"unet/config\.json: time_cond_proj_dim is missing"):
        Configs.read(CheckpointFiles(tmp_path))

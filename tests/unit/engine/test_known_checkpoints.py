"""Each well-known checkpoint makes what diffusers makes of it, or is refused in one sentence.

The checkpoints are tiny, with the structures of the published ones. docs/models.md lists the same
names.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.jobs.default_strengths import NO_STRENGTH
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitImages, InitLatents
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers import coefficients, registry
from tests.support.processes import ROOT
from tests.unit.engine.parity import (
    FOLDER,
    by_encoder,
    load_in_float32,
    read_model,
    stored_shapes,
    token_ids,
    worst,
    write_known,
)
from tools.parity.flow.known_flux1 import KNOWN_FLUX1
from tools.parity.flow.known_stable_diffusion_3 import KNOWN_STABLE_DIFFUSION_3
from tools.parity.fuzz.draft import noise
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.write import (
    digest,
    init_image,
    inpaint_mask,
    write_configs,
)

ANSWERS: Final = load_file(FOLDER / "known.safetensors")
DIGESTS: Final[dict[str, dict[str, str]]] = json.loads((FOLDER / "known.json").read_text())
LOADS: Final = [name for name, checkpoint in KNOWN.items() if not checkpoint.refused]
REFUSED: Final = [name for name, checkpoint in KNOWN.items() if checkpoint.refused]
PROMPT, NEGATIVE = "a red circle on blue", "blue"
STEPS, GUIDANCE, SIDE, TIMESTEP = 3, 3.0, 64, 500.0
IMAGE_GUIDANCE, STRENGTH = 1.5, 0.7
"""As in tools/parity/known/truth.py."""


@pytest.mark.parametrize("name", LOADS)
def test_a_checkpoint_that_loads_makes_what_diffusers_makes(name: str, tmp_path: Path) -> None:
    files = write_known(tmp_path, KNOWN[name])
    model = read_model(files)
    configs = model.configs
    programs, weights = load_in_float32(files, model)
    default = registry.default(configs.noise)
    table = registry.SCHEDULERS[default](configs.noise, STEPS, 0)
    tokens = token_ids(model.load_tokenizer(files), [[NEGATIVE, PROMPT]])
    inputs = _inputs(tokens, table, programs.denoiser.image_input is ImageInput.EDITED)
    size = SIDE // configs.vae.downsampling
    latents = np.moveaxis(noise((1, 4, size, size)), 1, -1)
    use = model.image_use
    init_latents = _init_latents(programs, weights, needs_image=bool(use.required))
    conditions, state = _begin(programs, weights, inputs, init_latents)
    predict = _predictor(programs, weights, conditions)

    output = predict(latents, np.full(1, TIMESTEP, np.float32))
    assert worst(output, np.moveaxis(ANSWERS[f"{name}|output"], 1, -1)) < 1e-5

    starts = {"image": (table, latents * np.float32(table.init_noise_sigma))}
    if use.required and use.default_strengths != NO_STRENGTH:
        skipped = {"noised": STEPS - int(STEPS * STRENGTH)}
        # Without a mask, strength 1 starts from the image, too.
        skipped |= {"image": 0} if programs.denoiser.image_input is ImageInput.NONE else {}
        for kind, steps in skipped.items():
            table = registry.SCHEDULERS[default](configs.noise, STEPS, steps)
            of_image, of_noise = (np.float32(factor) for factor in table.start)
            starts[kind] = table, of_image * init_latents.latents + of_noise * latents
    for kind, (table, sample) in starts.items():
        history = state.history
        for row in table.rows:
            # From the host, as the latents of the first step: their place is part of a program.
            output = predict(np.asarray(sample), row[:1])
            sample, history = _advance(sample, output, history, latents, row[None])
        image = np.asarray(_decode(programs.vae, programs.latent_scale, weights.vae, sample), int)
        difference = np.abs(image - ANSWERS[f"{name}|{kind}"])
        assert difference.max() <= 1
        assert difference.mean() < 2e-3


@pytest.mark.parametrize("name", LOADS)
def test_the_weights_have_the_names_and_shapes_of_diffusers(name: str, tmp_path: Path) -> None:
    write_configs(tmp_path, KNOWN[name])
    networks = read_model(CheckpointFiles(tmp_path)).networks()
    digests = {network: digest(stored_shapes(model)) for network, model in networks.items()}
    assert digests == DIGESTS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_is_refused_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    write_configs(tmp_path, KNOWN[name])
    with pytest.raises(CheckpointError, match=re.escape(KNOWN[name].refused)) as caught:
        Configs.read(CheckpointFiles(tmp_path))
    assert "\n" not in str(caught.value)


def test_the_documents_list_the_same_checkpoints_with_the_same_fate() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([^`]+/[^`]+)`[^|]*\| (loads|refused)\b", page, re.MULTILINE))
    refused = {name.partition(" ")[0]: each.refused for name, each in KNOWN.items()}
    refused |= {name: each.refused for name, each in KNOWN_FLUX1.items()}
    refused |= {name: each.refused for name, each in KNOWN_STABLE_DIFFUSION_3.items()}
    known = {name: "refused" if sentence else "loads" for name, sentence in refused.items()}
    assert listed == known
    assert len(known) >= 40


def _init_latents(programs: DiffusionPrograms, weights: Any, *, needs_image: bool) -> InitLatents:
    """Return the latents of the image that the pipeline needs, if it needs one."""
    shape = Shape(height=SIDE, width=SIDE)
    empty = EmptyBatch.of(programs, 1, (77,), STEPS)
    if not needs_image:
        return empty.init_latents(shape)
    images = empty.init_images(shape)._replace(
        pixels=init_image(SIDE)[None], inpaint_mask=inpaint_mask(SIDE)[None, :, :, None] > 0
    )
    with patch.object(diffusion_programs, "normal", _normal):
        encoded: InitLatents = _encode(programs, weights, images)
    return encoded


def _normal(key: jax.Array, size: tuple[int, ...]) -> jax.Array:
    height, width, channels = size
    return jnp.moveaxis(noise((len(key), channels, height, width)), 1, -1)


def _inputs(
    tokens: NDArray[np.int32], table: coefficients.CoefficientTable, is_edited: bool
) -> BatchInputs:
    return BatchInputs(
        tokens=by_encoder(tokens),
        has_negative=np.ones(1, bool),
        clip_skip=np.zeros(1, np.int32),
        key=np.zeros((1, 2), np.uint32),
        image_index=np.zeros(1, np.uint32),
        initial_mix=np.ones((1, 2), np.float32),
        guidance=np.full(1, GUIDANCE, np.float32),
        guidance_rescale=np.zeros(1, np.float32),
        rows=table.padded(STEPS + 1)[None],
        calls=np.full(1, len(table.rows), np.int32),
        image_guidance=np.full(1, IMAGE_GUIDANCE, np.float32) if is_edited else None,
    )


def _predictor(
    programs: DiffusionPrograms, weights: Any, conditions: Any
) -> Callable[[Any, Any], Any]:
    return partial(_predict, programs, weights.denoiser, conditions)


@partial(jax.jit, static_argnums=0)
def _encode(programs: DiffusionPrograms, weights: Any, images: InitImages) -> Any:
    return programs.encode(weights, images)


@partial(jax.jit, static_argnums=0)
def _begin(programs: DiffusionPrograms, weights: Any, inputs: Any, init_latents: Any) -> Any:
    return programs.begin(weights, inputs, init_latents)


@partial(jax.jit, static_argnums=0)
def _predict(
    programs: DiffusionPrograms, unet: Any, conditions: Any, latents: Any, timestep: Any
) -> Any:
    return programs.denoiser.predict(unet, conditions, latents, timestep, guidance=True)


@jax.jit
def _advance(sample: Any, output: Any, history: Any, fresh: Any, row: Any) -> Any:
    return coefficients.step(sample, output, history, fresh, row)


@partial(jax.jit, static_argnums=(0, 1))
def _decode(structure: Any, scale: LatentScale, weights: Any, latents: Any) -> Any:
    """Decode as `DiffusionPrograms.decode`, but with one compiled program for all UNets."""
    pixels = nnx.merge(structure, weights).decode(scale.unscale(latents))
    return jnp.round(jnp.clip(pixels / 2 + 0.5, 0, 1) * 255)

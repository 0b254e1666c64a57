"""Image-to-image and inpainting give the images of diffusers."""

from typing import Any, Final

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.runtime.batch_inputs import initial_mix
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitImages
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import FOLDER, PROMPTS, Oracle, by_encoder, token_ids

EDITS: Final = load_file(FOLDER / "edits.safetensors")
STEPS: Final = 10


def test_images_from_init_images_equal_those_of_diffusers(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = oracle.files.folder.name
    answers = {
        key.removeprefix(f"{name}|"): value for key, value in EDITS.items() if key.startswith(name)
    }
    draws = {shape: np.moveaxis(answers[shape], 1, -1) for shape in ("encoding", "noise")}
    programs, next_draw = oracle.programs, [draws["encoding"]]
    monkeypatch.setattr(diffusion_programs, "normal", lambda key, size: next_draw[0])
    encode, begin, step, decode = (
        jax.jit(each) for each in (programs.encode, programs.begin, programs.step, programs.decode)
    )
    pairs = zip(["red", "blue"], PROMPTS[:2], strict=True)
    tokens = by_encoder(token_ids(oracle.load_tokenizer(), pairs))
    same_key: dict[str, Any] = {
        "key": np.zeros((2, 2), np.uint32),
        "image_index": np.zeros(2, np.uint32),
    }
    cases = [key for key in answers if "|" in key]
    assert len(cases) == 22
    for case in cases:
        kind, scheduler, strength = case.split("|")
        mask = answers["repaint"] if kind == "inpaint" else None
        init_image = InitImage(
            pixels=answers["pixels"][0],
            mask_levels=None if mask is None else mask.astype(np.uint8) * 255,
            strength=float(strength),
            digest="",
        )
        spec = ImageSpec(
            prompt="", num_inference_steps=STEPS, guidance_scale=3, init_image=init_image
        )
        table = SCHEDULERS[scheduler](oracle.configs.noise, STEPS, STEPS - spec.steps)
        inputs = BatchInputs(
            tokens=tokens,
            has_negative=np.ones(2, np.bool_),
            clip_skip=np.zeros(2, np.int32),
            **same_key,
            initial_mix=np.stack([np.array(initial_mix(spec, table), np.float32)] * 2),
            guidance=np.full(2, 3, np.float32),
            guidance_rescale=np.zeros(2, np.float32),
            rows=np.stack([table.padded(2 * STEPS)] * 2),
            calls=np.full(2, len(table.rows), np.int32),
        )
        next_draw[0] = draws["encoding"]
        init_images = InitImages(
            pixels=answers["pixels"],
            inpaint_mask=np.stack(
                [np.ones((32, 32, 1), bool) if mask is None else mask[..., None]] * 2
            ),
            **same_key,
        )
        init_latents = encode(oracle.weights, init_images)
        next_draw[0] = draws["noise"]
        conditions, state = begin(oracle.weights, inputs, init_latents)
        for _ in table.rows:
            state, _ = step(oracle.weights.denoiser, conditions, state)
        images, *_ = decode(oracle.weights, state)
        difference = np.abs(np.asarray(images, int) - answers[case])
        assert difference.max() <= 1, case
        assert difference.mean() < 1e-3, case

"""Painting over a picture gives what diffusers gives, with and without a mask."""

from typing import Final

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from imagefleet.worker.engine import sampling
from imagefleet.worker.engine.batch_inputs import start_of
from imagefleet.worker.engine.build import load_tokenizer
from imagefleet.worker.engine.interface import ImageSpec, InitImage
from imagefleet.worker.engine.sampling import BatchInputs, InitImages
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import FOLDER, PROMPTS, Oracle

EDITS: Final = load_file(FOLDER / "edits.safetensors")
STEPS: Final = 10


def test_pictures_painted_over_are_those_of_diffusers(
    oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = oracle.folder.name
    answers = {
        key.removeprefix(f"{name}|"): value for key, value in EDITS.items() if key.startswith(name)
    }
    repaint = answers["repaint"]
    draws = {shape: np.moveaxis(answers[shape], 1, -1) for shape in ("encoding", "noise")}
    sampler, drawn = oracle.sampler, [draws["encoding"]]
    monkeypatch.setattr(sampling, "normal", lambda key, size: drawn[0])
    encode, begin, step, decode = (
        jax.jit(each) for each in (sampler.encode, sampler.begin, sampler.step, sampler.decode)
    )
    tokenizer = load_tokenizer(oracle.folder, oracle.configs)
    tokens = np.stack([tokenizer(pair) for pair in zip(["red", "blue"], PROMPTS[:2], strict=True)])
    nobody = {"key": np.zeros((2, 2), np.uint32), "image_index": np.zeros(2, np.uint32)}
    cases = [key for key in answers if "|" in key]
    assert len(cases) == 16
    for case in cases:
        kind, scheduler, strength = case.split("|")
        mask = repaint if kind == "inpaint" else None
        where = np.ones((8, 8), bool) if mask is None else mask[::4, ::4]
        original = InitImage(
            pixels=answers["pixels"][0], repaint=mask, strength=float(strength), digest=""
        )
        spec = ImageSpec(prompt="", num_inference_steps=STEPS, guidance_scale=3, original=original)
        made = SCHEDULERS[scheduler](oracle.configs.noise, STEPS, STEPS - spec.steps)
        request = BatchInputs(
            tokens=tokens,
            **nobody,
            start=np.stack([np.float32(start_of(spec, made))] * 2),
            guidance=np.full(2, 3, np.float32),
            rows=np.stack([made.padded(STEPS + 1)] * 2),
            calls=np.full(2, len(made.rows), np.int32),
        )
        drawn[0] = draws["encoding"]
        originals = InitImages(
            pixels=answers["pixels"], repaint=np.stack([where[..., None]] * 2), **nobody
        )
        given = encode(oracle.weights, originals)
        drawn[0] = draws["noise"]
        conditions, state = begin(oracle.weights, request, given)
        for _ in made.rows:
            state, _ = step(oracle.weights.unet, conditions, state)
        pictures, *_ = decode(oracle.weights, state)
        apart = np.abs(np.asarray(pictures, int) - answers[case])
        assert apart.max() <= 1, case
        assert apart.mean() < 1e-3, case

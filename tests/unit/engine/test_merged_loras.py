"""A job's LoRAs compute what the model computes into whose weights they are merged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.families.stable_diffusion.lora_names import LORA_NAMES
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitLatents
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import (
    BEGIN,
    FOLDER,
    PROMPTS,
    STEP,
    by_encoder,
    load_in_float32,
    lora_options,
    read_model,
    token_ids,
    worst,
)
from tools.parity.lora_cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_a_job_computes_what_the_merged_model_computes(case: str) -> None:
    base, scales = CASES[case]
    large = {name: 4 * scale for name, scale in scales.items()}
    merged = _one_step(base, loras=lora_options(large))
    # The job uses all but the last of the files that the worker holds, in another order.
    held = [*sorted(scales, reverse=True), "kohya_xl" if base == "xl" else "processors"]
    chosen = _one_step(base, held=lora_options(dict.fromkeys(held, 1.0)), scales=large)
    plain = _one_step(base)
    for one, other, without in zip(chosen, merged, plain, strict=True):
        assert worst(one, other) < 1e-5
        assert worst(without, other) > 1e-4 or case == "xl_peft"


@pytest.mark.parametrize("base", ["older", "xl"])
def test_a_lora_of_every_layer_computes_what_the_merged_model_computes(
    base: str, tmp_path: Path
) -> None:
    random, tensors = np.random.default_rng(5), {}
    files = CheckpointFiles(FOLDER / base)
    for network, model in read_model(files).networks().items():
        for entry in weight_entries(model) if network in LORA_NAMES.networks else ():
            if entry.path[-1] != "kernel":
                continue
            out, *rest = entry.stored_shapes[0]
            layer, ones = f"{network}.{entry.key.removesuffix('.weight')}", [1] * (len(rest) - 1)
            down, up = random.normal(0, 0.1, (2, *rest)), random.normal(0, 0.1, (out, 2, *ones))
            tensors[f"{layer}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{layer}.lora_B.weight"] = up.astype(np.float32)
    assert any("downsamplers" in key for key in tensors)
    save_file(tensors, tmp_path / "all.safetensors")
    file = LoraOption(name="all", path=str(tmp_path / "all.safetensors"), scale=0.7)
    merged = _one_step(base, loras=[file])
    chosen = _one_step(base, held=[replace(file, scale=1.0)], scales={"all": 0.7})
    for one, other in zip(chosen, merged, strict=True):
        assert worst(one, other) < 1e-5


def _one_step(
    base: str,
    *,
    loras: Sequence[LoraOption] = (),
    held: Sequence[LoraOption] = (),
    scales: Mapping[str, float] | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the keys of the text in the last block, and the latents after a step from noise."""
    files = CheckpointFiles(FOLDER / base)
    model, options = read_model(files), ModelOptions(loras=tuple(loras), job_loras=tuple(held))
    programs, weights = load_in_float32(files, model, options)
    table = SCHEDULERS["euler"](model.configs.noise, 2, 0)
    row = np.zeros((1, len(held)), np.float32)
    for number, option in enumerate(held):
        row[0, number] = (scales or {}).get(option.name, 0)
    inputs = BatchInputs(
        tokens=by_encoder(token_ids(model.load_tokenizer(files), [["blue", PROMPTS[0]]])),
        has_negative=np.array([True]),
        clip_skip=np.zeros(1, np.int32),
        key=np.zeros((1, 2), np.uint32),
        image_index=np.zeros(1, np.uint32),
        initial_mix=np.ones((1, 2), np.float32),
        guidance=np.full(1, 3, np.float32),
        guidance_rescale=np.zeros(1, np.float32),
        rows=table.padded(3)[None],
        calls=np.full(1, len(table.rows), np.int32),
        lora_scales=row if held else None,
    )
    init_latents = InitLatents(np.zeros((1, 8, 8, 4), np.float32), np.ones((1, 8, 8, 1), bool))
    conditions, state = BEGIN(programs, weights, inputs, init_latents)
    state, _ = STEP(programs, weights.denoiser, conditions, state)
    return np.asarray(jax.tree.leaves(conditions.text)[0]), np.asarray(state.latents)

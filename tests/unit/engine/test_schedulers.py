"""Every sampler's table walks where diffusers' scheduler walks."""

from typing import Any, Final

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from shared.errors import CheckpointError
from tests.unit.engine.parity import FOLDER, worst
from worker.engine.schedulers import catalogue, table
from worker.engine.schedulers.catalogue import SCHEDULERS
from worker.engine.schedulers.noise import NoiseSchedule

RUNS: Final = load_file(FOLDER / "samplers.safetensors")
START: Final = RUNS.pop("start")
BETAS: Final[dict[str, dict[str, Any]]] = {
    "sd": {
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "steps_offset": 1,
        "set_alpha_to_one": False,
    },
    "linear": {},
    "zero": {"rescale_betas_zero_snr": True},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
}
"""As in tools/parity/samplers.py."""
TIGHT: Final = 1e-5
"""Measured: 5e-6 at worst, without a network and over at most 50 steps."""


def _model(x: Any, timestep: float) -> Any:
    """The same stand-in for a network as in the fixtures."""
    mixed = 0.7 * x + 0.3 * np.roll(x, 1, -1)
    return (np.tanh(mixed) * (0.5 + timestep / 1000)).astype(np.float32)


def _schedule(prediction: str, spacing: str, betas: str) -> NoiseSchedule:
    config = {"prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": False}
    return NoiseSchedule.from_json(config | BETAS[betas])


@pytest.mark.parametrize("case", RUNS)
def test_a_run_visits_the_samples_of_diffusers(case: str) -> None:
    name, prediction, spacing, steps, betas = case.split("|")
    made = SCHEDULERS[name](_schedule(prediction, spacing, betas), int(steps))
    step = jax.jit(table.step)
    x, history = START * np.float32(made.initial_scale), np.zeros((1, 4, 4, 4, 4), np.float32)
    seen = []
    for row in made.rows:
        output = _model(np.asarray(x), float(row[0]))
        x, history = step(x, output, history, row[None])
        seen.append(np.asarray(x))
    assert worst(np.stack(seen), RUNS[case]) < TIGHT


def test_a_padded_table_reads_the_same_rows() -> None:
    made = SCHEDULERS["ddim"](_schedule("epsilon", "leading", "sd"), 7)
    padded = np.stack([made.padded(30), made.padded(30)])
    read = table.row_at(jax.numpy.asarray(padded), jax.numpy.asarray([0, 6]))
    np.testing.assert_array_equal(read, made.rows[[0, 6]])


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"_class_name": "DDIMScheduler"}, "clip_sample=True"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, "_class_name"),
        ({"clip_sample": False, "thresholding": True}, "thresholding"),
        ({"clip_sample": False, "beta_schedule": "sigmoid"}, "beta_schedule"),
        ({"clip_sample": False, "prediction_type": "flow"}, "prediction_type"),
        ({"clip_sample": False, "rescale_betas_zero_snr": True}, "rescale_betas_zero_snr"),
    ],
)
def test_a_process_we_do_not_have_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        NoiseSchedule.from_json(config)


def test_a_checkpoint_made_for_pndm_runs_with_every_sampler_and_pndm_by_default() -> None:
    config = {"_class_name": "PNDMScheduler", "skip_prk_steps": True, **BETAS["sd"]}
    noise = NoiseSchedule.from_json(config)
    assert catalogue.available(noise) == tuple(SCHEDULERS)
    assert catalogue.default(noise) == "pndm"


def test_pndm_is_not_offered_where_its_formula_has_no_answer() -> None:
    noise = _schedule("v_prediction", "trailing", "zero")
    assert "pndm" not in catalogue.available(noise)

"""Every table of a flow model makes the same samples as diffusers' scheduler."""

from typing import Any, Final

import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.sampling.step_tables import StepTables
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule
from imagefleet.worker.engine.schedulers.registry import FLOW_SCHEDULERS, step_table
from tests.unit.engine.parity import worst
from tests.unit.engine.scheduler_runs import SchedulerRuns
from tools.parity.flow.schedule_cases import CONFIGS, OF_SCHEDULER

TRUTH: Final = SchedulerRuns.read("flow_samplers.safetensors")
RUNS: Final = TRUTH.expected
CLASSES: Final = {
    "euler": "FlowMatchEulerDiscreteScheduler",
    "lcm": "FlowMatchLCMScheduler",
    "heun": "FlowMatchHeunDiscreteScheduler",
    "dpmsolver++": "DPMSolverMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
}
SOLVERS: Final = ("dpmsolver++", "unipc")
TOLERANCE: Final = 2e-5
"""Relative tolerance. Measured: 5e-6, of UniPC."""


def _schedule(name: str, config: str, tokens: int = 1024, **change: Any) -> FlowSchedule:
    fields: dict[str, Any] = {**CONFIGS[config], **change}
    if name in SOLVERS:
        fields |= {"use_flow_sigmas": True, "prediction_type": "flow_prediction"}
        fields["flow_shift"] = fields.pop("shift", 1.0)
    return FlowSchedule.from_json(fields, CLASSES[name]).shifted_for(tokens)


@pytest.mark.parametrize("case", RUNS)
def test_a_run_makes_the_samples_of_diffusers(case: str) -> None:
    name, config, steps, skipped, tokens = case.split("|")
    schedule = _schedule(name, config, int(tokens))
    if np.isnan(RUNS[case]).any():  # diffusers divides by zero
        is_single = steps == "1" and config.endswith("terminal")
        assert is_single or name not in registry.available(schedule)
        return
    table = step_table(name, schedule, int(steps), int(skipped))
    assert worst(TRUTH.samples(table, from_image=skipped != "0"), RUNS[case]) < TOLERANCE


def test_every_scheduler_is_compared_with_each_config_of_its_own() -> None:
    compared = {tuple(case.split("|")[:2]) for case in RUNS}
    assert OF_SCHEDULER.keys() == FLOW_SCHEDULERS.keys() == CLASSES.keys()
    assert compared == {(name, each) for name, configs in OF_SCHEDULER.items() for each in configs}


def test_one_step_with_a_terminal_shift_is_finite_here() -> None:
    for name in ("euler", "lcm", "unipc"):
        assert np.isfinite(step_table(name, _schedule(name, "terminal"), 1).rows[:, :5]).all()


@pytest.mark.parametrize("name", CLASSES)
def test_a_file_of_each_class_has_its_own_scheduler_and_offers_the_others(name: str) -> None:
    schedule = _schedule(name, "shift")
    assert schedule.shift == 3.0
    assert registry.default(schedule) == name
    assert set(registry.available(schedule)) == set(FLOW_SCHEDULERS)
    others = [each for each in FLOW_SCHEDULERS if each != name]
    for other in others:
        assert registry.default(schedule, other) == other
        assert registry.fault_of(other, schedule, (1, 2, 3, 8, 100)) is None


def test_schedulers_share_the_shift_whatever_the_class_of_the_file() -> None:
    for name in FLOW_SCHEDULERS:
        tables = [step_table(name, _schedule(each, "shift"), 5).rows for each in CLASSES]
        for table in tables[1:]:
            np.testing.assert_array_equal(table, tables[0])


@pytest.mark.parametrize(
    ("change", "lacking"),
    [
        ({"invert_sigmas": True}, {"euler", "lcm"}),
        ({"scale_factors": [0.5]}, {"lcm"}),
        ({"use_karras_sigmas": True}, {"dpmsolver++", "unipc"}),
        ({"use_dynamic_shifting": True, "time_shift_type": "linear"}, {"dpmsolver++"}),
        ({"final_sigmas_type": "sigma_min"}, {"dpmsolver++"}),
        ({"final_sigmas_type": "sigma_min", "solver_order": 3}, {"dpmsolver++"}),
        (
            {"final_sigmas_type": "sigma_min", "solver_order": 3, "lower_order_final": False},
            {"dpmsolver++", "unipc"},
        ),
        ({"solver_type": "bh1"}, {"unipc"}),
        ({"thresholding": True}, {"dpmsolver++", "unipc"}),
        ({"algorithm_type": "dpmsolver"}, {"dpmsolver++"}),
        ({"predict_x0": False}, {"unipc"}),
    ],
)
def test_a_scheduler_is_not_offered_with_values_that_it_does_not_support(
    change: dict[str, Any], lacking: set[str]
) -> None:
    schedule = _schedule("heun", "plain", **change)
    assert set(FLOW_SCHEDULERS) - set(registry.available(schedule)) == lacking
    with pytest.raises(ConfigurationError, match="cannot run this model"):
        registry.default(schedule, lacking.pop())


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("DDIMScheduler", {}, "scheduler is 'DDIMScheduler'; a flow model needs one of FlowMatch"),
        ("UniPCMultistepScheduler", {}, "use_flow_sigmas=False"),
        (
            "UniPCMultistepScheduler",
            {"use_flow_sigmas": True},
            r"prediction_type='epsilon' \(supported: 'flow_prediction'\)",
        ),
        ("FlowMatchEulerDiscreteScheduler", {"shift": 0}, "shift=0 is not a number above 0"),
        ("FlowMatchEulerDiscreteScheduler", {"shift_terminal": 1.5}, "shift_terminal=1.5 is not"),
        ("FlowMatchEulerDiscreteScheduler", {"time_shift_type": "cubic"}, "time_shift_type"),
        ("FlowMatchEulerDiscreteScheduler", {"base_shift": None}, "base_shift=None is not a num"),
        (
            "FlowMatchEulerDiscreteScheduler",
            {"use_karras_sigmas": True, "use_beta_sigmas": True},
            "of which one may be",
        ),
    ],
)
def test_a_file_that_is_not_for_flow_models_is_refused(
    name: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        FlowSchedule.from_json(fields, name)


def test_a_file_whose_own_scheduler_cannot_run_is_refused() -> None:
    schedule = _schedule("euler", "plain", invert_sigmas=True)
    with pytest.raises(CheckpointError, match=r"FlowMatchEuler.* with invert_sigmas=True .*heun"):
        registry.default(schedule)


def test_larger_images_are_shifted_further_and_have_tables_of_their_own() -> None:
    """mu is 0.5 at 256 tokens and 1.15 at 4,096, by which the sigmas are shifted as in the paper
    (Esser et al. 2024, equation 23)."""
    small, large = Shape(height=256, width=256), Shape(height=1024, width=1024)
    tokens = {small: 256, large: 4096}
    info = ModelInfo(
        name="flow",
        digest="",
        shapes=(small, large),
        schedulers=("euler",),
        default_scheduler="euler",
        default_num_inference_steps=2,
        default_guidance_scale=1.0,
        max_num_inference_steps=4,
    )
    tables = StepTables(info, lambda shape: _schedule("euler", "dynamic", tokens[shape]))
    spec = ImageSpec(prompt="", num_inference_steps=2, guidance_scale=1.0, scheduler="euler")
    for shape, mu in ((small, 0.5), (large, 1.15)):
        second_timestep = tables.of(spec, shape).rows[1, 0]
        assert second_timestep / 1000 == pytest.approx(np.exp(mu) / (np.exp(mu) + 1), rel=1e-6)

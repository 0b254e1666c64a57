"""Every scheduler's table makes the same samples as diffusers' scheduler."""

from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.schedulers import coefficients, registry
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import worst
from tests.unit.engine.scheduler_runs import SchedulerRuns
from tools.parity.scheduler_configs import BETA_SCHEDULES, CONFIGS, SD

TRUTH: Final = SchedulerRuns.read("samplers.safetensors")
RUNS: Final = TRUTH.expected
ALPHAS_CUMPROD: Final = RUNS.pop("alphas_cumprod")
CLASSES: Final = {
    "ddim": "DDIMScheduler",
    "pndm": "PNDMScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "dpmsolver++": "DPMSolverMultistepScheduler",
    "dpmsolver++_karras": "DPMSolverMultistepScheduler",
    "lcm": "LCMScheduler",
    "deis": "DEISMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lms": "LMSDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "kdpm2": "KDPM2DiscreteScheduler",
    "kdpm2_ancestral": "KDPM2AncestralDiscreteScheduler",
    "tcd": "TCDScheduler",
    "dpmsolver++_singlestep": "DPMSolverSinglestepScheduler",
    "edm_euler": "EDMEulerScheduler",
    "edm_dpmsolver++": "EDMDPMSolverMultistepScheduler",
}
WITH_BETAS: Final = tuple(name for name in SCHEDULERS if not name.startswith("edm"))
TOLERANCE: Final = 4e-5
"""Relative tolerance, measured without a network over at most 50 steps. We promise 1e-4."""


def _read(config: dict[str, Any]) -> NoiseSchedule:
    return NoiseSchedule.from_json(config, str(config.get("_class_name", "DDIMScheduler")))


def _schedule(name: str, prediction: str, spacing: str, config: str) -> NoiseSchedule:
    fields = {"_class_name": CLASSES[name], "clip_sample": False, "skip_prk_steps": True}
    fields |= {"prediction_type": prediction, "timestep_spacing": spacing}
    return _read(fields | CONFIGS[config])


@pytest.mark.parametrize("case", RUNS)
def test_a_run_makes_the_samples_of_diffusers(case: str) -> None:
    name, prediction, spacing, steps, skipped, config = case.split("|")
    noise = _schedule(name, prediction, spacing, config)
    assert name in registry.available(noise)
    table = SCHEDULERS[name](noise, int(steps), int(skipped))
    samples = TRUTH.samples(table, from_image=skipped != "0")
    assert worst(samples, RUNS[case]) < TOLERANCE


@pytest.mark.parametrize("config", ["karras", "exponential", "beta"])
def test_the_third_order_to_the_end_of_spaced_levels_is_not_offered(config: str) -> None:
    """diffusers divides zero by zero there, and makes NaN."""
    fields = {**CONFIGS[f"{config}_to_the_end"], "clip_sample": False}
    for order, is_offered in ((1, True), (2, True), (3, False)):
        noise = _read({**fields, "solver_order": order})
        assert ("unipc" in registry.available(noise)) == is_offered


def test_every_scheduler_prediction_type_and_spacing_is_compared() -> None:
    compared = {tuple(case.split("|")[:3]) for case in RUNS}
    spacings = ("leading", "trailing", "linspace")
    for name in WITH_BETAS:
        for prediction in ("epsilon", "v_prediction", "sample"):
            if name in registry.available(_schedule(name, prediction, "leading", "sd")):
                assert compared >= {(name, prediction, spacing) for spacing in spacings}


def test_padding_a_table_does_not_change_its_rows() -> None:
    table = SCHEDULERS["ddim"](_schedule("ddim", "epsilon", "leading", "sd"), 7, 0)
    padded = np.stack([table.padded(30), table.padded(30)])
    rows = coefficients.row_at(jax.numpy.asarray(padded), jax.numpy.asarray([0, 6]))
    np.testing.assert_array_equal(rows, table.rows[[0, 6]])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"_class_name": "FlowMatchEulerDiscreteScheduler"}, "scheduler is 'FlowMatchEuler"),
        ({"thresholding": True}, "thresholding"),
        ({"steps_offset": "1"}, "steps_offset='1' is not a whole number of at least 0"),
        ({"beta_schedule": "sigmoid"}, "beta_schedule"),
        ({"prediction_type": "flow"}, "prediction_type"),
        ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr"),
        ({"trained_betas": [0.1, 0.2]}, "trained_betas is not a list of 1000 numbers"),
        ({"trained_betas": "linear"}, "trained_betas is not a list"),
        ({"num_train_timesteps": 2, "trained_betas": [0.1, 1]}, "trained_betas has 1"),
        ({"num_train_timesteps": 2, "trained_betas": [0.1, None]}, "trained_betas has None"),
        (
            {"num_train_timesteps": 2, "trained_betas": [1e-9, 0.1]},
            "the betas are too small or too large",
        ),
        ({"beta_start": 0.9, "beta_end": 0.9}, "leave some signal at the last"),
        ({"_class_name": "PNDMScheduler"}, "skip_prk_steps=False"),
        ({"_class_name": "PNDMScheduler", "skip_prk_steps": False}, "skip_prk_steps=False"),
        ({"final_sigmas_type": "one"}, "final_sigmas_type"),
        ({"_class_name": "EulerDiscreteScheduler", "timestep_type": "continuous"}, "timestep_type"),
        ({"_class_name": "DPMSolverMultistepScheduler", "solver_order": 4}, "solver_order"),
        (
            {
                "_class_name": "DPMSolverSinglestepScheduler",
                "algorithm_type": "sde-dpmsolver++",
            },
            "algorithm_type='sde-dpmsolver",
        ),
        ({"_class_name": "UniPCMultistepScheduler", "predict_x0": False}, "predict_x0=False"),
        ({"_class_name": "UniPCMultistepScheduler", "disable_corrector": 1}, "disable_corrector=1"),
        ({"_class_name": "DEISMultistepScheduler", "solver_type": "x"}, "solver_type='x'"),
        ({"_class_name": "EDMEulerScheduler", "sigma_min": 90}, "sigma_min=90 is not below"),
        ({"_class_name": "EDMEulerScheduler", "prediction_type": "sample"}, "prediction_type="),
        (
            {"use_karras_sigmas": True, "use_beta_sigmas": True},
            "use_karras_sigmas and use_beta_sigmas are true",
        ),
        (
            {"_class_name": "DPMSolverMultistepScheduler", "algorithm_type": "dpmsolver"},
            "dpmsolver",
        ),
    ],
)
def test_the_error_names_an_unsupported_field(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        registry.default(_read(config))


def test_a_checkpoint_for_pndm_runs_with_every_scheduler_and_defaults_to_pndm() -> None:
    noise = _read({"_class_name": "PNDMScheduler", "skip_prk_steps": True, **SD})
    assert registry.available(noise) == WITH_BETAS
    assert registry.default(noise) == "pndm"


@pytest.mark.parametrize(("name", "class_name"), CLASSES.items())
def test_the_default_is_the_scheduler_of_the_checkpoint(name: str, class_name: str) -> None:
    noise = _read({"_class_name": class_name, "skip_prk_steps": True, **SD})
    assert registry.default(noise) == name.removesuffix("_karras")


def test_use_karras_sigmas_applies_to_the_plain_scheduler_name() -> None:
    karras = _schedule("dpmsolver++", "epsilon", "leading", "karras")
    default = _schedule("dpmsolver++", "epsilon", "leading", "sd")
    plain, forced = SCHEDULERS["dpmsolver++"], SCHEDULERS["dpmsolver++_karras"]
    np.testing.assert_array_equal(plain(karras, 9, 0).rows, forced(default, 9, 0).rows)
    assert not np.array_equal(plain(karras, 9, 0).rows, plain(default, 9, 0).rows)


def test_schedulers_are_not_offered_where_their_formula_is_undefined() -> None:
    assert "pndm" not in registry.available(_schedule("ddim", "v_prediction", "trailing", "zero"))
    offered = registry.available(_schedule("ddim", "sample", "leading", "sd"))
    assert not {"pndm", "euler_ancestral", "kdpm2", "kdpm2_ancestral"} & set(offered)


def test_a_file_without_betas_has_those_of_its_class_and_schedulers_with_the_same() -> None:
    """In diffusers another scheduler of such a file has the betas of its own class."""
    heun = _read({"_class_name": "HeunDiscreteScheduler", "beta_schedule": "scaled_linear"})
    assert (heun.beta_start, heun.beta_end) == (0.00085, 0.012)
    assert registry.available(heun) == ("heun", "kdpm2", "kdpm2_ancestral")
    ddim = _read({"_class_name": "DDIMScheduler", "clip_sample": False})
    assert (ddim.beta_schedule, ddim.beta_end) == ("linear", 0.02)
    assert not {"heun", "kdpm2", "kdpm2_ancestral", "lcm", "tcd"} & set(registry.available(ddim))
    betas = {"beta_schedule": "linear", "beta_start": 0.0001, "beta_end": 0.02}
    complete = _read({"_class_name": "DDIMScheduler", "clip_sample": False, **betas})
    assert {"heun", "lcm"} <= set(registry.available(complete))


def test_set_alpha_to_one_that_is_null_counts_as_false() -> None:
    assert _read({"_class_name": "DDIMScheduler"}).set_alpha_to_one is None
    null = _read({"_class_name": "DDIMScheduler", "set_alpha_to_one": None})
    assert null.set_alpha_to_one is False


@pytest.mark.parametrize("name", ["kdpm2", "kdpm2_ancestral"])
def test_the_kept_area_has_the_sigma_of_the_end_of_a_step_in_its_middle_too(name: str) -> None:
    table = SCHEDULERS[name](_schedule(name, "epsilon", "leading", "sd"), 5, 0)
    rows = jax.numpy.asarray(table.rows)
    zeros, ones = (jax.numpy.full((len(rows), 1, 1, 1), value) for value in (0.0, 1.0))
    noise = coefficients.noised_to_next_level(rows, zeros, ones).ravel()
    signal = coefficients.noised_to_next_level(rows, ones, zeros).ravel()
    ratios = noise[:-1] / signal[:-1]
    np.testing.assert_allclose(ratios[0::2], ratios[1::2], rtol=1e-5)


def test_the_steps_done_grow_with_the_calls_up_to_all_steps() -> None:
    assert [registry.steps_after(call, 5, 5) for call in range(7)] == [0, 1, 2, 3, 4, 5, 5]
    assert [registry.steps_after(call, 5, 6) for call in range(7)] == [0, 1, 2, 3, 4, 5, 5]
    assert [registry.steps_after(call, 3, 5) for call in range(6)] == [0, 1, 2, 2, 3, 3]


def test_lcm_timesteps_still_decrease_with_more_steps_than_in_distillation() -> None:
    table = SCHEDULERS["lcm"](_schedule("lcm", "epsilon", "leading", "sd"), 80, 0)
    assert (np.diff(table.rows[:, 0]) < 0).all()
    assert np.isfinite(np.delete(table.rows, coefficients.BOUND, axis=1)).all()


def test_trained_betas_replace_the_beta_schedule() -> None:
    betas = np.linspace(1e-3, 0.03, 1000, dtype=np.float32)
    listed = _read({"trained_betas": betas.tolist()})
    product = np.cumprod(1 - betas.astype(np.float64))
    np.testing.assert_allclose(listed.alphas_cumprod, product, rtol=1e-5)


@pytest.mark.parametrize("row", range(len(BETA_SCHEDULES)), ids=[str(b) for b in BETA_SCHEDULES])
def test_the_cumulative_alphas_are_those_of_torch_bit_for_bit(row: int) -> None:
    """One unit in the last place is 1e-4 of the noise at the first timesteps."""
    curve, first, last = BETA_SCHEDULES[row]
    ours = _read({"beta_schedule": curve, "beta_start": first, "beta_end": last})
    np.testing.assert_array_equal(ours.alphas_cumprod, ALPHAS_CUMPROD[row])


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize(
    ("train", "counts"), [(40, range(1, 41)), (1000, (61, 122, 999, 1000))], ids=["all", "extreme"]
)
def test_every_scheduler_runs_with_any_possible_step_count(
    spacing: str, train: int, counts: Sequence[int]
) -> None:
    for config in ({}, SD, CONFIGS["clipped_cosine"]):
        fields = {"num_train_timesteps": train, "timestep_spacing": spacing, **config}
        noise = _read(fields | {"clip_sample": False})
        for name in registry.available(noise):
            scheduler = SCHEDULERS[name]
            for steps in counts:
                rows = scheduler(noise, steps, 0).rows
                case = (name, steps, config)
                clipped = "lambda_min_clipped" in config and name.startswith("dpm")
                expected = steps + (name == "pndm" and steps > 1)
                if name == "heun" or name.startswith("kdpm2"):
                    expected = 2 * steps - 1
                assert expected <= registry.max_calls(steps), case
                assert len(rows) == expected or (clipped and len(rows) < expected), case
                assert np.isfinite(np.delete(rows, coefficients.BOUND, axis=1)).all(), case
                assert 0 <= rows[:, 0].min() <= rows[:, 0].max() <= train - 1, case
                last = scheduler(noise, steps, steps - 1).rows  # an init image at a low strength
                assert np.isfinite(np.delete(last, coefficients.BOUND, axis=1)).all(), case


@pytest.mark.parametrize("class_name", ["PNDMScheduler", "EulerAncestralDiscreteScheduler"])
def test_a_checkpoint_that_cannot_run_its_own_scheduler_is_refused(class_name: str) -> None:
    config = {"_class_name": class_name, "prediction_type": "sample", "skip_prk_steps": True}
    noise = _read(config)
    with pytest.raises(CheckpointError, match=f"{class_name} is not defined for.*'sample'"):
        registry.default(noise)


@pytest.mark.parametrize("variance", ["fixed_small", "fixed_small_log", "fixed_large"])
def test_a_config_of_ddpm_with_a_fixed_variance_is_read(variance: str) -> None:
    noise = _read({"_class_name": "DDPMScheduler", "variance_type": variance})
    assert registry.default(noise, "ddim") == "ddim"


@pytest.mark.parametrize(
    "class_name",
    ["DDPMScheduler", "DPMSolverSDEScheduler"],
)
def test_a_scheduler_that_this_engine_lacks_needs_a_choice(class_name: str) -> None:
    noise = _read({"_class_name": class_name, **SD})
    with pytest.raises(
        CheckpointError, match=f"{class_name}', .* set IMAGEFLEET_SCHEDULER to .*ddim"
    ):
        registry.default(noise)
    assert registry.default(noise, "dpmsolver++") == "dpmsolver++"
    with pytest.raises(ConfigurationError, match=r"SCHEDULER='sde' cannot run .* choose ddim or"):
        registry.default(noise, "sde")

"""A scheduler reads the fields that it has in diffusers, and is offered if it supports them."""

from typing import Any, Final

import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import (
    PIPELINES,
    PipelineIndex,
)
from imagefleet.worker.engine.schedulers import coefficients, registry, supported_fields
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tools.parity.scheduler_configs import SD

KARRAS: Final = {"use_karras_sigmas": True}


def _schedule(class_name: str = "EulerDiscreteScheduler", **fields: Any) -> NoiseSchedule:
    complete: dict[str, Any] = {**SD, "skip_prk_steps": True}
    return NoiseSchedule.from_json(complete | fields, class_name)


def _bound(schedule: NoiseSchedule, name: str) -> float:
    return float(SCHEDULERS[name](schedule, 4, 0).rows[0, coefficients.BOUND])


@pytest.mark.parametrize(
    ("class_name", "of_file", "ddim", "lcm"),
    [
        ("DDIMScheduler", None, 1.0, np.inf),
        ("DDPMScheduler", None, 1.0, np.inf),
        ("EulerDiscreteScheduler", None, np.inf, np.inf),
        ("LCMScheduler", None, np.inf, np.inf),
        ("DDIMScheduler", False, np.inf, np.inf),
        ("EulerDiscreteScheduler", True, 1.0, 1.0),
    ],
)
def test_each_scheduler_has_its_own_default_of_clip_sample(
    class_name: str, of_file: bool | None, ddim: float, lcm: float
) -> None:
    fields = {} if of_file is None else {"clip_sample": of_file}
    schedule = _schedule(class_name, **fields)
    assert (_bound(schedule, "ddim"), _bound(schedule, "lcm")) == (ddim, lcm)
    assert ("heun" in registry.available(schedule)) == (of_file is not True)


@pytest.mark.parametrize("skips", [None, False, True])
def test_pndm_is_offered_if_the_file_leaves_out_the_runge_kutta_steps(skips: bool | None) -> None:
    """In diffusers, PNDMScheduler.from_config has 12 such calls if the file does not say."""
    fields = {} if skips is None else {"skip_prk_steps": skips}
    for class_name in ("EulerDiscreteScheduler", "DDIMScheduler", "PNDMScheduler"):
        schedule = NoiseSchedule.from_json({**SD, **fields}, class_name)
        assert ("pndm" in registry.available(schedule)) == (skips is True)
    if skips is not True:
        with pytest.raises(CheckpointError, match=r"skip_prk_steps=False \(supported: True\)"):
            registry.default(schedule)
        assert registry.default(schedule, "ddim") == "ddim"


def test_the_pipeline_of_inpainting_leaves_out_the_runge_kutta_steps_where_it_can() -> None:
    """It sets the field if the scheduler's config has it."""
    pipeline = PIPELINES["StableDiffusionInpaintPipeline"]
    for class_name, file, is_offered in (
        ("PNDMScheduler", {}, True),
        ("DDIMScheduler", {}, False),
        ("DDIMScheduler", {"skip_prk_steps": False}, True),
    ):
        index = PipelineIndex(
            pipeline=pipeline,
            text_encoder_classes=(),
            scheduler_class=class_name,
            has_safety_checker=False,
            force_zeros_for_empty_prompt=False,
        )
        schedule = index.noise_schedule({**SD, **file})
        assert ("pndm" in registry.available(schedule)) == is_offered


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"thresholding": True}, "ddim lcm deis unipc dpmsolver++ *_karras *_singlestep"),
        ({"use_lu_lambdas": True}, "dpmsolver++ *_karras"),
        ({"use_flow_sigmas": True}, "deis unipc dpmsolver++ *_karras *_singlestep"),
        ({"interpolation_type": "log_linear"}, "euler"),
        ({"timestep_type": "continuous"}, "euler"),
        ({"solver_p": "x"}, "unipc"),
        ({"predict_x0": False}, "unipc"),
        ({"solver_order": 4}, "deis unipc dpmsolver++ *_karras *_singlestep"),
        ({"algorithm_type": "dpmsolver"}, "dpmsolver++ *_karras *_singlestep"),
        ({"algorithm_type": "sde-dpmsolver++"}, "deis *_singlestep"),
        ({"variance_type": "learned"}, "dpmsolver++ *_karras *_singlestep"),
        ({"clip_sample": True}, "heun"),
        ({"skip_prk_steps": False}, "pndm"),
        # Without another spacing of the noise levels, no scheduler of diffusers reads the bounds.
        ({"sigma_max": 10.0}, "*_karras"),
        (
            {"sigma_min": 0.1, **KARRAS},
            "euler dpmsolver++ *_karras *_singlestep deis unipc lms heun kdpm2 kdpm2_ancestral",
        ),
    ],
)
def test_a_field_takes_only_schedulers_away_that_read_it(
    fields: dict[str, Any], missing: str
) -> None:
    schedule = _schedule("EulerAncestralDiscreteScheduler", **fields)
    expected = {name.replace("*", "dpmsolver++") for name in missing.split()}
    assert set(registry.available(_schedule())) - set(registry.available(schedule)) == expected
    assert registry.default(schedule) == "euler_ancestral"


def test_a_checkpoint_whose_own_scheduler_has_such_a_field_needs_a_choice() -> None:
    schedule = _schedule(thresholding=True, timestep_type="continuous")
    message = r"EulerDiscreteScheduler does not run here with timestep_type='continuous' \(supp"
    with pytest.raises(CheckpointError, match=message):
        registry.default(schedule)
    assert registry.default(schedule, "lms") == "lms"


def test_a_model_of_edm_offers_what_supports_its_file() -> None:
    edm = {"sigma_data": 0.5, "use_flow_sigmas": True}
    assert registry.available(_schedule("EDMEulerScheduler", **edm)) == (
        *("edm_euler", "edm_dpmsolver++"),
    )
    schedule = _schedule("EDMEulerScheduler", **edm, algorithm_type="dpmsolver")
    assert registry.available(schedule) == ("edm_euler",)


@pytest.mark.parametrize(
    ("class_name", "read"),
    [
        ("EulerDiscreteScheduler", "heun"),
        ("DPMSolverMultistepScheduler", "heun"),
        ("UniPCMultistepScheduler", "midpoint"),
        ("DEISMultistepScheduler", "midpoint"),
    ],
)
def test_a_solver_replaces_a_type_of_another_before_another_reads_it(
    class_name: str, read: str
) -> None:
    schedule = _schedule(class_name, solver_type="heun")
    assert schedule.dpm.solver_type == schedule.singlestep.solver_type == read


def test_the_table_names_schedulers_of_the_registry() -> None:
    names = supported_fields._SUPPORTED.keys() | set(supported_fields._SPACED)
    assert names <= SCHEDULERS.keys()

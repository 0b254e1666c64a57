"""Read the noise schedule of a flow model from its checkpoint's `scheduler/scheduler_config.json`.

Such a model moves along straight lines from noise to an image (Lipman et al. 2023; Esser et al.
2024): a sample is x = (1 - sigma) x0 + sigma eps, and the model predicts eps - x0. There are no
betas. Noise levels are shifted towards noise, by a number of the file or more for larger images.
Input: that config. Output: the shift, and the options of single schedulers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader
from imagefleet.worker.engine.schedulers.noise_schedule import read_sigma_spacing
from imagefleet.worker.engine.schedulers.prediction import Prediction
from imagefleet.worker.engine.schedulers.solver_options import DpmOptions, UniPcOptions
from imagefleet.worker.engine.schedulers.supported_fields import (
    as_own_class_leaves_it,
    unsupported_in_flow,
)

FLOW_MATCH_CLASSES: Final = (
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "FlowMatchLCMScheduler",
)
SOLVER_CLASSES: Final = ("DPMSolverMultistepScheduler", "UniPCMultistepScheduler")
"""These schedulers of diffusers run flow models with `use_flow_sigmas`."""
_FILE: Final = "scheduler/scheduler_config.json"

Sigmas = NDArray[np.floating[Any]]


class ImageShift(Protocol):
    """It says how far the noise levels of an image are shifted: diffusers' `mu`."""

    def __call__(self, steps: int) -> float:
        """Return mu for a number of steps."""


@dataclass(frozen=True)
class NoImageShift:
    """The pipeline gives no mu. A schedule with dynamic shifts has none of its own."""

    def __call__(self, steps: int) -> float:
        raise ValueError("the schedule shifts by the size of the image, which no family gave it")


@dataclass(frozen=True)
class LinearShift:
    """mu is linear in the tokens of an image, and independent of the steps (FLUX.1)."""

    mu: float

    def __call__(self, steps: int) -> float:
        return self.mu


@dataclass(frozen=True, kw_only=True)
class FlowSchedule:
    """The noise schedule of a flow model.

    It has the fields of scheduler_config.json and diffusers' defaults. `None` means that the file
    does not have the field.
    """

    class_name: str
    """It is the class in model_index.json."""
    num_train_timesteps: int
    shift: float
    """It is `flow_shift` in files of `SOLVER_CLASSES`."""
    use_dynamic_shifting: bool
    time_shift_type: str
    shift_terminal: float | None
    base_shift: float
    max_shift: float
    base_image_seq_len: int
    max_image_seq_len: int
    sigma_spacing: str | None
    """It is one of `SIGMA_SPACINGS`. None means that the levels are spaced as the timesteps."""
    stochastic_sampling: bool
    final_sigmas_type: str
    use_flow_sigmas: bool
    """It is true in files of `SOLVER_CLASSES`. Other classes of diffusers keep the field, too, and
    do not read it, but a pipeline may."""
    dpm: DpmOptions
    unipc: UniPcOptions
    unsupported: Mapping[str, str]
    """By scheduler, it has the field, with its value, for which the scheduler cannot run with this
    file."""
    image_shift: ImageShift = NoImageShift()
    has_pipeline_levels: bool = True
    """Whether diffusers' pipeline of the family gives `euler` and `lcm` their levels, from 1 to
    1 / steps. Otherwise they begin with levels from the first to the last of training."""
    prediction_type: Prediction = Prediction.FLOW

    @classmethod
    def from_json(cls, config: Mapping[str, Any], class_name: str) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            class_name: The scheduler's class in model_index.json. As in diffusers, `_class_name` in
                the config has no effect.

        Raises:
            CheckpointError: Fields are missing or unsupported, or the class is not for flow models.
        """
        if class_name not in (known := (*FLOW_MATCH_CLASSES, *SOLVER_CLASSES)):
            raise CheckpointError(
                f"model_index.json: scheduler is {class_name!r}; a flow model needs one of "
                f"{', '.join(known)}"
            )
        config = as_own_class_leaves_it(config, class_name)
        fields = ConfigReader(_FILE, config)
        schedule = cls._read(fields, class_name)
        fields.ignore(*config)  # the other fields are options of single schedulers
        fields.finish()
        return schedule

    @classmethod
    def _read(cls, fields: ConfigReader, class_name: str) -> Self:
        shift_field = "shift"
        if class_name in SOLVER_CLASSES:
            shift_field = "flow_shift"
            fields.choice("use_flow_sigmas", False, (True,))
            fields.choice("prediction_type", "epsilon", (Prediction.FLOW.value,))
        spacing = read_sigma_spacing(fields)
        is_dynamic = fields.flag("use_dynamic_shifting", False)
        kind = fields.choice("time_shift_type", "exponential", ("exponential", "linear"))
        return cls(
            class_name=class_name,
            num_train_timesteps=fields.count("num_train_timesteps", 1000),
            shift=fields.number(shift_field, 1.0, above=0),
            use_dynamic_shifting=is_dynamic,
            time_shift_type=kind,
            shift_terminal=_terminal(fields),
            base_shift=fields.number("base_shift", 0.5),
            max_shift=fields.number("max_shift", 1.15),
            base_image_seq_len=fields.count("base_image_seq_len", 256),
            max_image_seq_len=fields.count("max_image_seq_len", 4096),
            sigma_spacing=spacing,
            stochastic_sampling=fields.flag("stochastic_sampling", False),
            final_sigmas_type=fields.choice("final_sigmas_type", "zero", ("zero", "sigma_min")),
            use_flow_sigmas=fields.flag("use_flow_sigmas", False),
            dpm=DpmOptions.read(fields),
            unipc=UniPcOptions.read(fields),
            unsupported=unsupported_in_flow(
                fields, is_spaced=spacing is not None, is_linear=is_dynamic and kind == "linear"
            ),
        )

    def shifted_for(self, tokens: int) -> Self:
        """Return the schedule of images of this many tokens, by the numbers of the file."""
        span = self.max_image_seq_len - self.base_image_seq_len
        slope = (self.max_shift - self.base_shift) / span if span else 0.0
        mu = tokens * slope + (self.base_shift - slope * self.base_image_seq_len)
        return replace(self, image_shift=LinearShift(mu))

    def without_pipeline_levels(self) -> Self:
        """Return the schedule for a pipeline that gives no noise levels."""
        return replace(self, has_pipeline_levels=False)

    def refusing_pipeline_levels(self) -> Self:
        """Return the schedule for a pipeline that gives no noise levels if the file has
        `use_flow_sigmas`, whatever its class.

        Other schedulers than `SOLVER_CLASSES` then make levels of their own, which are not those of
        this engine.
        """
        if not self.use_flow_sigmas:
            return self
        reasons = dict.fromkeys(("euler", "lcm"), "use_flow_sigmas=True (supported: False)")
        return replace(self, unsupported={**reasons, **self.unsupported})

    def shifted(self, sigmas: Sigmas, steps: int) -> Sigmas:
        """Shift noise levels towards noise, in their own precision as in diffusers."""
        if not self.use_dynamic_shifting:
            return self.shifted_by_file(sigmas)
        mu = self.image_shift(steps)
        factor = mu if self.time_shift_type == "linear" else math.exp(mu)
        return np.asarray(factor / (factor + (1 / sigmas - 1)))

    def shifted_by_file(self, sigmas: Sigmas) -> Sigmas:
        """Shift noise levels by the number of the file alone."""
        return np.asarray(self.shift * sigmas / (1 + (self.shift - 1) * sigmas))

    def stretched(self, sigmas: Sigmas) -> Sigmas:
        """Stretch noise levels so that the last one is `shift_terminal`, if the file has one.

        A single level is where noise is complete, and stays there: diffusers divides by zero.
        """
        if not self.shift_terminal or len(sigmas) == 1:
            return sigmas
        missing = 1 - sigmas
        return np.asarray(1 - missing / (missing[-1] / (1 - self.shift_terminal)))


def _terminal(fields: ConfigReader) -> float | None:
    value = fields.get("shift_terminal", None)
    return None if value is None else fields.number("shift_terminal", 0.0, above=0, below=1)

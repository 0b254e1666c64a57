"""Read the noise schedule of a model from its checkpoint's `scheduler/scheduler_config.json`.

Input: that config. Output: the cumulative alphas of training, the timesteps for a step count, and
the options of single schedulers. It has the schedules with betas and those of EDM; `flow_schedule`
has those of flow models. A family says which schedule a shape has (`FamilyModel.noise_schedule`).
This module uses numpy only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader
from imagefleet.worker.engine.schedulers.prediction import WITH_BETAS, Prediction
from imagefleet.worker.engine.schedulers.solver_options import (
    DeisOptions,
    DpmOptions,
    EdmOptions,
    LcmOptions,
    UniPcOptions,
)
from imagefleet.worker.engine.schedulers.supported_fields import as_own_class_leaves_it, unsupported

Floats = NDArray[np.float64]


SPACINGS: Final = ("leading", "trailing", "linspace")
SIGMA_SPACINGS: Final = ("karras", "exponential", "beta")
"""Noise levels are spaced by Karras et al. 2022, equation 5; by equal steps of log sigma; or by
quantiles of a beta distribution (Lee et al. 2024)."""

_KNOWN_CLASSES: Final = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSDEScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "TCDScheduler",
    "UniPCMultistepScheduler",
)
"""diffusers' schedulers that share these betas: a model made for one runs with all others. The
registry says which of them this engine has."""
EDM_CLASSES: Final = ("EDMDPMSolverMultistepScheduler", "EDMEulerScheduler")
"""These schedulers of diffusers are for models trained with the noise levels of Karras et al. 2022.
They have no betas, so such a model runs with these two only."""
_DEFAULT_BETAS: Final = ("linear", 1e-4, 0.02)
_OTHER_DEFAULT_BETAS: Final = {
    "LCMScheduler": ("scaled_linear", 0.00085, 0.012),
    "TCDScheduler": ("scaled_linear", 0.00085, 0.012),
    "HeunDiscreteScheduler": ("linear", 0.00085, 0.012),
    "KDPM2DiscreteScheduler": ("linear", 0.00085, 0.012),
    "KDPM2AncestralDiscreteScheduler": ("linear", 0.00085, 0.012),
}
_BETA_FIELDS: Final = ("beta_schedule", "beta_start", "beta_end")


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """It is `scheduler_config.json`. A field is None if the file has no value and defaults
    differ."""

    class_name: str
    """It is the class in model_index.json."""
    num_train_timesteps: int
    beta_schedule: str
    beta_start: float
    beta_end: float
    trained_betas: tuple[float, ...] | None
    prediction_type: Prediction
    timestep_spacing: str | None
    steps_offset: int
    set_alpha_to_one: bool | None
    rescale_betas_zero_snr: bool
    clip_sample: bool | None
    """Whether the predicted x0 is clipped (DDIM, LCM)."""
    clip_sample_range: float
    """It is the largest absolute value after clipping."""
    sigma_spacing: str | None
    """It says how the noise levels of the solvers are spaced: one of `SIGMA_SPACINGS`. None means
    that they are spaced as the timesteps."""
    final_sigmas_type: str
    """It gives the noise level after the last step of Euler and DPM-Solver++: `zero` or
    `sigma_min`, the lowest level of training."""
    dpm: DpmOptions
    singlestep: DpmOptions
    deis: DeisOptions
    unipc: UniPcOptions
    lcm: LcmOptions
    lacks_betas: bool
    """Whether the file leaves betas to the scheduler's class. In diffusers, another scheduler that
    a job chooses would have betas of its own."""
    edm: EdmOptions | None
    """None: the model was trained with betas."""
    unsupported: Mapping[str, str]
    """By scheduler, it has the field, with its value, for which the scheduler cannot run with this
    file."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any], class_name: str) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            class_name: The scheduler's class in model_index.json. As in diffusers, `_class_name` in
                the config has no effect.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        if class_name not in (known := (*_KNOWN_CLASSES, *EDM_CLASSES)):
            raise CheckpointError(
                f"model_index.json: scheduler is {class_name!r}; "
                f"this engine knows {', '.join(known)}"
            )
        config = as_own_class_leaves_it(config, class_name)
        fields = ConfigReader("scheduler/scheduler_config.json", config)
        schedule = cls._read(fields, class_name)
        fields.ignore(*config)  # the other fields are options of single schedulers
        fields.finish()
        schedule._require_valid_betas()
        return schedule

    @classmethod
    def _read(cls, fields: ConfigReader, name: str) -> Self:
        fields.choice("_use_default_values", None, (None, []))
        count = fields.count("num_train_timesteps", 1000)
        curve, first, last = default_betas(name)
        trained_betas = fields.numbers("trained_betas", length=count, above=0, below=1)
        sigma_spacing = read_sigma_spacing(fields)
        return cls(
            class_name=name,
            num_train_timesteps=count,
            beta_schedule=fields.choice("beta_schedule", curve, tuple(_BETAS)),
            beta_start=fields.number("beta_start", first, above=0, below=1),
            beta_end=fields.number("beta_end", last, above=0, below=1),
            trained_betas=trained_betas,
            prediction_type=_prediction(fields),
            timestep_spacing=fields.choice("timestep_spacing", None, (None, *SPACINGS)),
            steps_offset=fields.count("steps_offset", 0, minimum=0),
            set_alpha_to_one=_optional_flag(fields, "set_alpha_to_one"),
            rescale_betas_zero_snr=fields.flag("rescale_betas_zero_snr", False),
            clip_sample=_optional_flag(fields, "clip_sample"),
            clip_sample_range=fields.number("clip_sample_range", 1.0, above=0),
            sigma_spacing=sigma_spacing,
            final_sigmas_type=fields.choice("final_sigmas_type", "zero", ("zero", "sigma_min")),
            dpm=DpmOptions.read(fields),
            singlestep=DpmOptions.read_singlestep(fields),
            deis=DeisOptions.read(fields),
            unipc=UniPcOptions.read(fields),
            lcm=LcmOptions.read(fields, count),
            lacks_betas=trained_betas is None and any(map(fields.is_missing, _BETA_FIELDS)),
            edm=EdmOptions.read(fields) if name in EDM_CLASSES else None,
            unsupported=unsupported(fields, is_spaced=sigma_spacing is not None),
        )

    def _require_valid_betas(self) -> None:
        """Check that x0 can be predicted at every timestep and that each has noise."""
        if self.edm is not None:
            return
        if self.rescale_betas_zero_snr and self.prediction_type is Prediction.EPSILON:
            raise CheckpointError(
                "scheduler/scheduler_config.json: with rescale_betas_zero_snr=True the first step "
                "sees pure noise, from which prediction_type='epsilon' cannot recover a sample; "
                "only v_prediction and sample can"
            )
        if not 0 < self._unscaled_alphas_cumprod[-1] <= self._unscaled_alphas_cumprod[0] < 1:
            raise CheckpointError(
                "scheduler/scheduler_config.json: the betas are too small or too large; they must "
                "add noise at the first timestep and leave some signal at the last"
            )

    def clip_bound(self, *, default: bool) -> float:
        """Return the bound of the predicted x0, infinite if it is not clipped.

        Args:
            default: Whether the scheduler clips if the file does not say.
        """
        clips = default if self.clip_sample is None else self.clip_sample
        return self.clip_sample_range if clips else math.inf

    @cached_property
    def alphas_cumprod(self) -> NDArray[np.float32]:
        """Return the signal's share of variance at each training timestep.

        They are float32 and rounded as in torch. At the first timesteps they are nearly 1, so that
        an error of one unit in the last place changes the noise there by 1e-4 of it.
        """
        return (
            _zero_terminal_snr(self._unscaled_alphas_cumprod)
            if self.rescale_betas_zero_snr
            else self._unscaled_alphas_cumprod
        )

    @cached_property
    def _unscaled_alphas_cumprod(self) -> NDArray[np.float32]:
        """Return `alphas_cumprod` before the rescaling to zero terminal SNR."""
        if self.trained_betas is not None:
            betas = np.array(self.trained_betas, np.float32)
        else:
            count, first, last = self.num_train_timesteps, self.beta_start, self.beta_end
            betas = _BETAS[self.beta_schedule](first, last, count).astype(np.float32)
        # torch multiplies in float64 and rounds each product.
        return np.cumprod(np.float32(1) - betas, dtype=np.float64).astype(np.float32)

    def timesteps(self, steps: int, default_spacing: str) -> NDArray[np.int64]:
        """Return the timesteps of `steps` steps, the noisiest first (Lin et al. 2023, table 2)."""
        train = self.num_train_timesteps
        spacing = self.timestep_spacing or default_spacing
        if spacing == "linspace":
            return np.linspace(0, train - 1, steps).round()[::-1].astype(np.int64)
        if spacing == "leading":
            stride = train // steps
            # With nearly as many steps as timesteps, the full offset would exceed the last one.
            offset = min(self.steps_offset, train - 1 - (steps - 1) * stride)
            return np.arange(steps)[::-1] * np.int64(stride) + offset
        # The end is 0.5 and not 0: for 61 steps of 1000, a rounding error would add timestep -1.
        return np.arange(train, 0.5, -train / steps).round().astype(np.int64) - 1


def default_betas(class_name: str) -> tuple[str, float, float]:
    """Return curve, first and last beta of a file without them, by diffusers' class."""
    return _OTHER_DEFAULT_BETAS.get(class_name, _DEFAULT_BETAS)


def _optional_flag(fields: ConfigReader, name: str) -> bool | None:
    """Return a field, of which diffusers reads null as false. None: it is missing."""
    if fields.is_missing(name):
        return None
    return bool(fields.choice(name, None, (None, True, False)))


def _prediction(fields: ConfigReader) -> Prediction:
    """Return what the model predicts; for an unknown value, add an error."""
    name = fields.choice("prediction_type", "epsilon", tuple(map(str, WITH_BETAS)))
    return Prediction(name) if name in WITH_BETAS else Prediction.EPSILON


def read_sigma_spacing(fields: ConfigReader) -> str | None:
    """Return how the noise levels are spaced. None: as the timesteps."""
    names = {name: f"use_{name}_sigmas" for name in SIGMA_SPACINGS}
    chosen = [name for name, field in names.items() if fields.flag(field, False)]
    if len(chosen) > 1:
        listed = " and ".join(names[name] for name in chosen)
        fields.add_error(f"{listed} are true, of which one may be")
    return chosen[0] if chosen else None


def _zero_terminal_snr(alphas_cumprod: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rescale so that the last timestep is pure noise (Lin et al. 2023, algorithm 1)."""
    root = np.sqrt(alphas_cumprod)
    scaled = (root - root[-1]) * (root[0] / (root[0] - root[-1]))
    return np.asarray(scaled**2, np.float32)


def _linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Return what `torch.linspace` makes: a float32 step from the nearer end, rounded once."""
    start, end = np.float32(first), np.float32(last)
    step = float((end - start) / np.float32(max(1, count - 1)))
    index = np.arange(count)
    from_start, from_end = float(start) + step * index, float(end) - step * (count - 1 - index)
    return np.where(index < max(1, count // 2), from_start, from_end).astype(np.float32)


def _scaled_linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Return betas that are linear in the square root, as latent diffusion uses them."""
    return _linear(first**0.5, last**0.5, count) ** 2


def _squared_cosine(_first: float, _last: float, count: int) -> Floats:
    """Return the betas of Nichol & Dhariwal 2021, equation 17."""
    alphas_cumprod = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.asarray(np.minimum(1 - alphas_cumprod[1:] / alphas_cumprod[:-1], 0.999))


_BETAS: Final[Mapping[str, Callable[[float, float, int], NDArray[Any]]]] = {
    "linear": _linear,
    "scaled_linear": _scaled_linear,
    "squaredcos_cap_v2": _squared_cosine,
}

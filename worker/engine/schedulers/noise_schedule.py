"""The noise schedule of a model, as its checkpoint's `scheduler/scheduler_config.json` defines it.

The input is that config. The output is the cumulative alphas of training, the timesteps for a step
count, and the options of single schedulers. This module uses numpy only.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.models.config_reader import ConfigReader

Floats = NDArray[np.float64]
PREDICTIONS: Final = ("epsilon", "v_prediction", "sample")
SPACINGS: Final = ("leading", "trailing", "linspace")

_KNOWN_CLASSES: Final = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSDEScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
"""diffusers' schedulers that share these betas: a model made for one runs with all others. The
registry says which of them this engine has."""
_DPM: Final = "DPMSolverMultistepScheduler"
_LCM_BETAS: Final = ("scaled_linear", 0.00085, 0.012)
"""Defaults of LCMScheduler; the other classes default to linear betas."""
_CLIPS_BY_DEFAULT: Final = ("DDIMScheduler", "DDPMScheduler")
"""Classes whose `clip_sample` is true by default."""

_FIXED_VARIANCES: Final = ("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")
"""DDPM's variances of the noise that it adds. No scheduler of ours adds it, so any fixed variance
may stand in the file. A learned variance would be half of the model's output."""


_DPM_VALUES: Final[Mapping[str, tuple[object, ...]]] = {
    "solver_order": (2, 1),
    "solver_type": ("midpoint", "heun", "logrho", "bh1", "bh2"),
    "algorithm_type": ("dpmsolver++", "sde-dpmsolver++", "deis"),
}
"""Supported values of DPM-Solver++'s options, the default first. As in diffusers, the types of DEIS
and UniPC stand for the defaults."""


@dataclass(frozen=True, kw_only=True)
class DpmOptions:
    """Options of DPM-Solver++. diffusers takes them from the file of any scheduler."""

    solver_order: int = 2
    solver_type: str = "midpoint"
    stochastic: bool = False
    lower_order_final: bool = True
    euler_at_final: bool = False
    lambda_min_clipped: float = -math.inf

    @classmethod
    def read(cls, fields: ConfigReader, *, is_own: bool) -> Self | None:
        """Return the options.

        None: the file is of another scheduler (`is_own` is false), and with its options
        DPM-Solver++ is not supported.
        """
        values = {name: fields.get(name, allowed[0]) for name, allowed in _DPM_VALUES.items()}
        if not is_own and any(values[name] not in _DPM_VALUES[name] for name in values):
            return None
        for name, value in values.items():
            fields.require_one_of(name, value, _DPM_VALUES[name])
        return cls(
            solver_order=values["solver_order"],
            solver_type="heun" if values["solver_type"] == "heun" else "midpoint",
            stochastic=values["algorithm_type"] == "sde-dpmsolver++",
            lower_order_final=fields.flag("lower_order_final", True),
            euler_at_final=fields.flag("euler_at_final", False),
            lambda_min_clipped=fields.number("lambda_min_clipped", -math.inf),
        )


@dataclass(frozen=True, kw_only=True)
class LcmOptions:
    """How a latent consistency model was distilled."""

    original_inference_steps: int = 50
    timestep_scaling: float = 10.0

    @classmethod
    def read(cls, fields: ConfigReader, train: int) -> Self:
        original = fields.count("original_inference_steps", min(50, train))
        if original > train:
            fields.add_error(
                f"original_inference_steps={original} is more than num_train_timesteps={train}"
            )
        return cls(
            original_inference_steps=original,
            timestep_scaling=fields.number("timestep_scaling", 10.0, above=0),
        )


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """`scheduler_config.json`. None: the file has no value, and the schedulers' defaults differ."""

    class_name: str
    """In model_index.json."""
    num_train_timesteps: int
    beta_schedule: str
    beta_start: float
    beta_end: float
    trained_betas: tuple[float, ...] | None
    prediction_type: str
    timestep_spacing: str | None
    steps_offset: int
    set_alpha_to_one: bool | None
    rescale_betas_zero_snr: bool
    clip_bound: float
    """Bound of the predicted x0 (DDIM, LCM). Infinite if samples are not clipped."""
    use_karras_sigmas: bool
    """Whether Euler and DPM-Solver++ use the noise levels of Karras et al. 2022."""
    final_sigmas_type: str
    """Noise level after the last step of Euler and DPM-Solver++: `zero` or `sigma_min`, the lowest
    level of training."""
    dpm: DpmOptions | None
    """None: DPM-Solver++ is not supported."""
    lcm: LcmOptions

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
        if class_name not in _KNOWN_CLASSES:
            raise CheckpointError(
                f"model_index.json: scheduler is {class_name!r}; "
                f"this engine knows {', '.join(_KNOWN_CLASSES)}"
            )
        fields = ConfigReader("scheduler/scheduler_config.json", config)
        schedule = cls._read(fields, class_name)
        fields.ignore(*config)  # the other fields are options of single schedulers
        fields.finish()
        schedule._require_valid_betas()
        return schedule

    @classmethod
    def _read(cls, fields: ConfigReader, name: str) -> Self:
        _require_supported(fields, name)
        count = fields.count("num_train_timesteps", 1000)
        curve, first, last = _LCM_BETAS if name == "LCMScheduler" else ("linear", 1e-4, 0.02)
        clip_sample = fields.flag("clip_sample", name in _CLIPS_BY_DEFAULT)
        bound = fields.number("clip_sample_range", 1.0, above=0)
        return cls(
            class_name=name,
            num_train_timesteps=count,
            beta_schedule=fields.choice("beta_schedule", curve, tuple(_BETAS)),
            beta_start=fields.number("beta_start", first, above=0, below=1),
            beta_end=fields.number("beta_end", last, above=0, below=1),
            trained_betas=fields.numbers("trained_betas", length=count, above=0, below=1),
            prediction_type=fields.choice("prediction_type", "epsilon", PREDICTIONS),
            timestep_spacing=fields.choice("timestep_spacing", None, (None, *SPACINGS)),
            steps_offset=fields.count("steps_offset", 0, minimum=0),
            set_alpha_to_one=fields.choice("set_alpha_to_one", None, (None, True, False)),
            rescale_betas_zero_snr=fields.flag("rescale_betas_zero_snr", False),
            clip_bound=bound if clip_sample else math.inf,
            use_karras_sigmas=fields.flag("use_karras_sigmas", False),
            final_sigmas_type=fields.choice("final_sigmas_type", "zero", ("zero", "sigma_min")),
            dpm=DpmOptions.read(fields, is_own=name == _DPM),
            lcm=LcmOptions.read(fields, count),
        )

    def _require_valid_betas(self) -> None:
        """Check that x0 can be predicted at every timestep and that each has noise."""
        if self.rescale_betas_zero_snr and self.prediction_type == "epsilon":
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

    @cached_property
    def alphas_cumprod(self) -> NDArray[np.float32]:
        """The signal's share of the variance at each training timestep; float32 as in torch."""
        return (
            _zero_terminal_snr(self._unscaled_alphas_cumprod)
            if self.rescale_betas_zero_snr
            else self._unscaled_alphas_cumprod
        )

    @cached_property
    def _unscaled_alphas_cumprod(self) -> NDArray[np.float32]:
        """`alphas_cumprod` before the rescaling to zero terminal SNR."""
        if self.trained_betas is not None:
            betas = np.array(self.trained_betas, np.float32)
        else:
            count, first, last = self.num_train_timesteps, self.beta_start, self.beta_end
            betas = _BETAS[self.beta_schedule](first, last, count).astype(np.float32)
        return np.cumprod(np.float32(1) - betas, dtype=np.float32)

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


def _require_supported(fields: ConfigReader, class_name: str) -> None:
    """Check the fields that change the result and of which one value is supported."""
    fields.choice("skip_prk_steps", class_name != "PNDMScheduler", (True,))
    fields.choice("variance_type", None, (None, *_FIXED_VARIANCES))
    fields.require(
        thresholding=False,
        use_exponential_sigmas=False,
        use_beta_sigmas=False,
        use_lu_lambdas=False,
        use_flow_sigmas=False,
        timestep_type="discrete",
        interpolation_type="linear",
        sigma_min=None,
        sigma_max=None,
    )
    fields.choice("_use_default_values", None, (None, []))


def _zero_terminal_snr(alphas_cumprod: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rescale so that the last timestep is pure noise (Lin et al. 2023, algorithm 1)."""
    root = np.sqrt(alphas_cumprod)
    scaled = (root - root[-1]) * (root[0] / (root[0] - root[-1]))
    return np.asarray(scaled**2, np.float32)


def _linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    return np.linspace(first, last, count, dtype=np.float32)


def _scaled_linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Return betas that are linear in the square root, as latent diffusion uses them."""
    return np.linspace(first**0.5, last**0.5, count, dtype=np.float32) ** 2


def _squared_cosine(_first: float, _last: float, count: int) -> Floats:
    """Return the betas of Nichol & Dhariwal 2021, equation 17."""
    alphas_cumprod = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.asarray(np.minimum(1 - alphas_cumprod[1:] / alphas_cumprod[:-1], 0.999))


_BETAS: Final[Mapping[str, Callable[[float, float, int], NDArray[Any]]]] = {
    "linear": _linear,
    "scaled_linear": _scaled_linear,
    "squaredcos_cap_v2": _squared_cosine,
}

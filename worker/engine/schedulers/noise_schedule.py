"""The noise schedule a model was trained with, and what follows from it for every sampler.

Goes in: `scheduler/scheduler_config.json`. Comes out: the signal left at each training timestep,
the timesteps to visit, and the choices the checkpoint makes for single samplers. Plain numpy.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.models.config import ConfigReader

Floats = NDArray[np.float64]
PREDICTIONS: Final = ("epsilon", "v_prediction", "sample")
SPACINGS: Final = ("leading", "trailing", "linspace")

_FAMILY: Final = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "LCMScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
"""Schedulers of diffusers that read the same betas: a model made for one runs with the others."""
_DPM: Final = "DPMSolverMultistepScheduler"
_LCM_BETAS: Final = ("scaled_linear", 0.00085, 0.012)
"""What that class assumes where its file is silent; the others assume linear betas."""
_CLIPPING: Final = ("DDIMScheduler", "DDPMScheduler")
"""Of these, the ones that clip unless told not to."""

_FIXED_VARIANCES: Final = ("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log")
"""DDPM's choices of the noise it adds, which no sampler of ours does. A learned one would be half
of the model's output."""


@dataclass(frozen=True, kw_only=True)
class DpmOptions:
    """What a DPMSolverMultistepScheduler's own file may choose; others get its defaults."""

    solver_order: int = 2
    solver_type: str = "midpoint"
    stochastic: bool = False
    lower_order_final: bool = True
    euler_at_final: bool = False
    lambda_min_clipped: float = -math.inf

    @classmethod
    def read(cls, fields: ConfigReader) -> Self:
        kinds = ("dpmsolver++", "sde-dpmsolver++")
        return cls(
            solver_order=fields.choice("solver_order", 2, (1, 2)),
            solver_type=fields.choice("solver_type", "midpoint", ("midpoint", "heun")),
            stochastic=fields.choice("algorithm_type", kinds[0], kinds) == kinds[1],
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
            fields.fault(f"original_inference_steps={original} of num_train_timesteps={train}")
        return cls(
            original_inference_steps=original,
            timestep_scaling=fields.number("timestep_scaling", 10.0, above=0),
        )


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """`scheduler_config.json`; None where the file is silent and samplers' defaults differ."""

    class_name: str
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
    """Largest value of a predicted clean sample (DDIM, LCM). Infinite: no clipping."""
    use_karras_sigmas: bool
    """Euler and DPM-Solver++ place their levels as Karras et al. 2022 do."""
    final_sigmas_type: str
    """Euler and DPM-Solver++ end without noise (`zero`) or at the least of training."""
    dpm: DpmOptions
    lcm: LcmOptions

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """
        Raises:
            CheckpointError: fields that ask for another process.
        """
        fields = ConfigReader("scheduler", config)
        schedule = cls._read(fields)
        fields.ignored(*config)  # settings of one sampler; ours have their own
        fields.finish()
        schedule._require_recoverable()
        return schedule

    @classmethod
    def _read(cls, fields: ConfigReader) -> Self:
        name = fields.choice("_class_name", "DDIMScheduler", _FAMILY)
        _require_implemented(fields, name)
        count = fields.count("num_train_timesteps", 1000)
        curve, first, last = _LCM_BETAS if name == "LCMScheduler" else ("linear", 1e-4, 0.02)
        clips = fields.flag("clip_sample", name in _CLIPPING)
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
            steps_offset=fields.count("steps_offset", 0, least=0),
            set_alpha_to_one=fields.choice("set_alpha_to_one", None, (None, True, False)),
            rescale_betas_zero_snr=fields.flag("rescale_betas_zero_snr", False),
            clip_bound=bound if clips else math.inf,
            use_karras_sigmas=fields.flag("use_karras_sigmas", False),
            final_sigmas_type=fields.choice("final_sigmas_type", "zero", ("zero", "sigma_min")),
            dpm=DpmOptions.read(fields) if name == _DPM else DpmOptions(),
            lcm=LcmOptions.read(fields, count),
        )

    def _require_recoverable(self) -> None:
        """A sample can be had from what the first step sees, and noise is left at each."""
        if self.rescale_betas_zero_snr and self.prediction_type == "epsilon":
            raise CheckpointError(
                "rescale_betas_zero_snr=True leaves nothing but noise at the first step, from "
                "which prediction_type='epsilon' cannot recover a sample; use v_prediction"
            )
        if not 0 < self._trained[-1] <= self._trained[0] < 1:
            raise CheckpointError(
                "the betas of this scheduler leave all of the signal at the first timestep, or "
                "nothing of it at the last"
            )

    @cached_property
    def alphas_cumprod(self) -> NDArray[np.float32]:
        """Share of the signal's variance left at each training timestep; float32 as in torch."""
        return _zero_terminal_snr(self._trained) if self.rescale_betas_zero_snr else self._trained

    @cached_property
    def _trained(self) -> NDArray[np.float32]:
        """The same before it is rescaled."""
        if self.trained_betas is not None:
            betas = np.array(self.trained_betas, np.float32)
        else:
            count, first, last = self.num_train_timesteps, self.beta_start, self.beta_end
            betas = _BETAS[self.beta_schedule](first, last, count).astype(np.float32)
        return np.cumprod(np.float32(1) - betas, dtype=np.float32)

    def timesteps(self, steps: int, default_spacing: str) -> NDArray[np.int64]:
        """Training timesteps to visit, the noisiest first (Lin et al. 2023, table 2)."""
        train = self.num_train_timesteps
        spacing = self.timestep_spacing or default_spacing
        if spacing == "linspace":
            return np.linspace(0, train - 1, steps).round()[::-1].astype(np.int64)
        if spacing == "leading":
            stride = train // steps
            # It gives way where nearly as many steps as timesteps would lead past the noisiest.
            offset = min(self.steps_offset, train - 1 - (steps - 1) * stride)
            return np.arange(steps)[::-1] * np.int64(stride) + offset
        # To 0.5, not 0: for 61 steps of 1000 a rounding error would add timestep -1.
        return np.arange(train, 0.5, -train / steps).round().astype(np.int64) - 1


def _require_implemented(fields: ConfigReader, class_name: str) -> None:
    """What changes the process, and has one value here."""
    fields.choice("skip_prk_steps", class_name != "PNDMScheduler", (True,))
    fields.choice("variance_type", None, (None, *_FIXED_VARIANCES))
    fields.fixed(
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


def _zero_terminal_snr(kept: NDArray[np.float32]) -> NDArray[np.float32]:
    """Lin et al. 2023, algorithm 1: shift and scale so that nothing is left at the end."""
    root = np.sqrt(kept)
    scaled = (root - root[-1]) * (root[0] / (root[0] - root[-1]))
    return np.asarray(scaled**2, np.float32)


def _linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    return np.linspace(first, last, count, dtype=np.float32)


def _scaled_linear(first: float, last: float, count: int) -> NDArray[np.float32]:
    """Linear in the square root: latent diffusion's own."""
    return np.linspace(first**0.5, last**0.5, count, dtype=np.float32) ** 2


def _squared_cosine(_first: float, _last: float, count: int) -> Floats:
    """Nichol & Dhariwal 2021, equation 17."""
    at = np.cos((np.arange(count + 1) / count + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.asarray(np.minimum(1 - at[1:] / at[:-1], 0.999))


_BETAS: Final[Mapping[str, Callable[[float, float, int], NDArray[Any]]]] = {
    "linear": _linear,
    "scaled_linear": _scaled_linear,
    "squaredcos_cap_v2": _squared_cosine,
}

"""Make tables of DDIM (Song et al. 2021, equation 12 without noise): diffusers' DDIMScheduler with
eta=0."""

from typing import Final

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.noise_levels import (
    CLEAN,
    NoiseLevel,
    eps_from_output,
    x0_from_output,
)
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_CLIPS_BY_DEFAULT: Final = ("DDIMScheduler", "DDPMScheduler")
"""If a file of these classes has no `clip_sample`, samples are clipped."""


def ddim(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0."""
    alphas_cumprod = schedule.alphas_cumprod
    ends_clean = schedule.set_alpha_to_one is None or schedule.set_alpha_to_one
    final = CLEAN if ends_clean else NoiseLevel.from_alpha_cumprod(alphas_cumprod[0])
    stride = schedule.num_train_timesteps // steps
    timesteps = schedule.timesteps(steps, default_spacing="leading")[skipped:]
    levels = [NoiseLevel.from_alpha_cumprod(alphas_cumprod[timestep]) for timestep in timesteps]
    bound = schedule.clip_bound(default=schedule.class_name in _CLIPS_BY_DEFAULT)
    rows = []
    for timestep, level in zip(timesteps, levels, strict=True):
        previous = timestep - stride
        end = NoiseLevel.from_alpha_cumprod(alphas_cumprod[previous]) if previous >= 0 else final
        # Like diffusers, clip the predicted x0 but not the predicted eps.
        eps = eps_from_output(schedule.prediction_type, level)
        rows.append(
            make_row(
                timestep,
                to_h=x0_from_output(schedule.prediction_type, level),
                bound=bound,
                keep=end.sigma * eps.sample_part,
                direct=end.sigma * eps.output_part,
                lags=(end.alpha,),
            )
        )
    return make_table(rows, levels, schedule.prediction_type)

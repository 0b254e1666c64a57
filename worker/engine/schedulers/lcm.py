"""Make tables of multistep latent consistency sampling (Luo et al. 2023, algorithm 3): diffusers'
LCMScheduler."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable, make_row, make_table
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, NoiseLevel, x0_from_output
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_SIGMA_DATA: Final = 0.5


def lcm(schedule: NoiseSchedule, steps: int, skipped: int = 0) -> CoefficientTable:
    """Return the table for `steps` steps without the first `skipped`; h is the predicted x0.

    Each step but the last adds fresh noise to its denoised sample.
    """
    timesteps = distilled_timesteps(schedule, steps)[skipped:]
    levels = [
        NoiseLevel.from_alpha_cumprod(schedule.alphas_cumprod[timestep]) for timestep in timesteps
    ]
    rows = []
    for index, (timestep, level) in enumerate(zip(timesteps, levels, strict=True)):
        scaled = timestep * schedule.lcm.timestep_scaling
        # c_skip and c_out of Luo et al. 2023, the boundary condition of consistency models.
        skip = _SIGMA_DATA**2 / (scaled**2 + _SIGMA_DATA**2)
        out = scaled / (scaled**2 + _SIGMA_DATA**2) ** 0.5
        is_last = index == len(timesteps) - 1
        end = CLEAN if is_last else levels[index + 1]
        rows.append(
            make_row(
                timestep,
                to_h=x0_from_output(schedule.prediction_type, level),
                bound=schedule.clip_bound(default=False),
                keep=end.alpha * skip,
                lags=(end.alpha * out,),
                fresh=end.sigma,
            )
        )
    return make_table(rows, levels, schedule.prediction_type)


def distilled_timesteps(schedule: NoiseSchedule, steps: int) -> NDArray[np.int64]:
    """Return `steps` of the timesteps at which the model was distilled.

    With more steps than those, diffusers raises an error; here the timesteps lie closer.
    """
    original = max(schedule.lcm.original_inference_steps, steps)
    distilled = np.arange(original, 0, -1) * (schedule.num_train_timesteps // original) - 1
    return distilled[np.linspace(0, original, steps, endpoint=False).astype(np.int64)]

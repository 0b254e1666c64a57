"""DDIM (Song et al. 2021) without added noise, as diffusers' DDIMScheduler at eta 0."""

from worker.engine.schedulers.noise import CLEAN, Level, NoiseSchedule, moved
from worker.engine.schedulers.table import Table, row, table


def ddim(noise: NoiseSchedule, steps: int) -> Table:
    """`steps` calls of the model."""
    kept = noise.alphas_cumprod
    to_one = noise.set_alpha_to_one is None or noise.set_alpha_to_one
    final = CLEAN if to_one else Level.of(kept[0])
    stride = noise.num_train_timesteps // steps
    rows = []
    for timestep in noise.timesteps(steps, default_spacing="leading"):
        before = timestep - stride
        end = Level.of(kept[before]) if before >= 0 else final
        keep, lag = moved(noise.prediction_type, Level.of(kept[timestep]), end)
        rows.append(row(timestep, keep=keep, lags=(lag,)))
    return table(rows)

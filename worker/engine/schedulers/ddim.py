"""DDIM (Song et al. 2021) without added noise, as diffusers' DDIMScheduler at eta 0."""

from imagefleet.worker.engine.schedulers.coefficients import Table, row, table
from imagefleet.worker.engine.schedulers.noise_levels import CLEAN, Level, clean_sample, direction
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


def ddim(noise: NoiseSchedule, steps: int, skipped: int = 0) -> Table:
    """`steps` calls of the model, less the `skipped` first ones; h is the clean sample."""
    kept = noise.alphas_cumprod
    to_one = noise.set_alpha_to_one is None or noise.set_alpha_to_one
    final = CLEAN if to_one else Level.of(kept[0])
    stride = noise.num_train_timesteps // steps
    visited = noise.timesteps(steps, default_spacing="leading")[skipped:]
    levels = [Level.of(kept[timestep]) for timestep in visited]
    rows = []
    for timestep, level in zip(visited, levels, strict=True):
        before = timestep - stride
        end = Level.of(kept[before]) if before >= 0 else final
        # Clipping changes the clean sample only, not the noise that goes with it.
        eps = direction(noise.prediction_type, level)
        rows.append(
            row(
                timestep,
                to_h=clean_sample(noise.prediction_type, level),
                bound=noise.clip_bound,
                keep=end.sigma * eps.sample_part,
                direct=end.sigma * eps.output_part,
                lags=(end.alpha,),
            )
        )
    return table(rows, levels, noise.prediction_type)

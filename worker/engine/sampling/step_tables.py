"""Make the table of steps of an image: one row for each call of the denoiser.

Input: an `ImageSpec`. Output: the scheduler's table for its steps, without those that an init
image, `denoising_start` or `denoising_end` leaves out.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from imagefleet.shared.errors import InvalidRequest
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable
from imagefleet.worker.engine.schedulers.registry import Schedule, step_table

_MAX_CACHED_TABLES: Final = 256
"""The least recently used table is dropped. Jobs may ask for any of millions of tables, each of up
to 64 kB."""


class StepTables:
    """Makes the tables of one model, and caches them."""

    def __init__(self, info: ModelInfo, noise_schedule: Callable[[Shape], Schedule]) -> None:
        """
        Args:
            info: Of the model.
            noise_schedule: Returns the schedule of the model for a declared shape.
        """
        self._info = info
        self._schedules: list[Schedule] = []
        """No two of these schedules are equal. Shapes with equal schedules share tables."""
        self._number_by_shape = {
            shape: self._number_of(noise_schedule(shape)) for shape in info.shapes
        }
        self._cached_table = lru_cache(_MAX_CACHED_TABLES)(self._make_table)

    def _number_of(self, schedule: Schedule) -> int:
        if schedule not in self._schedules:
            self._schedules.append(schedule)
        return self._schedules.index(schedule)

    def of(self, spec: ImageSpec, shape: Shape) -> CoefficientTable:
        """Return the table of an image of a declared shape.

        Raises:
            ValueError: a scheduler that this model does not have, or a step count out of range.
            InvalidRequest: `denoising_start` or `denoising_end` leaves no step.
        """
        number = self._number_by_shape[shape]
        scheduler, steps = spec.scheduler, spec.num_inference_steps
        if scheduler not in self._info.schedulers:
            available = ", ".join(self._info.schedulers)
            raise ValueError(f"scheduler {scheduler!r} is not available; there are {available}")
        max_steps = self._info.max_num_inference_steps
        if not 1 <= steps <= max_steps:
            raise ValueError(f"{steps} steps are out of range; 1 to {max_steps} are possible")
        if spec.skipped_steps == steps:
            strength = spec.init_image.strength if spec.init_image else 1.0
            raise ValueError(f"strength {strength} leaves none of {steps} steps")
        table = self._cached_table(number, scheduler, steps, self._skipped_steps(spec, number))
        if spec.denoising_end is None:
            return table
        self._require_split()
        table = table.until(self._cutoff(spec.denoising_end, number))
        if not len(table.rows):
            raise InvalidRequest(
                "denoising_end",
                spec.denoising_end,
                f"leaves none of {steps} steps of {scheduler} to denoise",
            )
        return table

    def _skipped_steps(self, spec: ImageSpec, number: int) -> int:
        """Return the number of first steps that do not run."""
        if spec.input_latents is None:
            return spec.skipped_steps
        self._require_split()
        steps, start = spec.num_inference_steps, spec.input_latents.denoising_start
        table = self._cached_table(number, spec.scheduler, steps, 0)
        skipped = table.steps_before(self._cutoff(start, number))
        if skipped == steps:
            limit = f"leaves none of {steps} steps of {spec.scheduler} to denoise"
            raise InvalidRequest("denoising_start", start, limit)
        return skipped

    def _require_split(self) -> None:
        if self._info.latents is None:
            raise ValueError(
                "this model does not support denoising_end or denoising_start "
                "(docs/models.md, Base and refiner)"
            )

    def _cutoff(self, share: float, number: int) -> int:
        """Return the timestep at which a share of the steps ends, computed as in diffusers."""
        train = self._schedules[number].num_train_timesteps
        return round(train - share * train)

    def _make_table(
        self, number: int, scheduler: str, steps: int, skipped: int
    ) -> CoefficientTable:
        return step_table(scheduler, self._schedules[number], steps, skipped)

"""From `ImageSpec`s to the arrays of a batch.

Goes in: specs, as many as there are slots or fewer. Comes out: a `BatchInputs` of full size on the
host, and the pictures to start from. Slots left over are padding, which no row of a table ever
moves.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from imagefleet.worker.engine.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.sampling import BatchInputs, DiffusionPrograms, Given, InitImages
from imagefleet.worker.engine.schedulers.coefficients import COLUMNS, Table
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.registry import EXTRA_CALLS, SCHEDULERS
from imagefleet.worker.engine.tokenizer import PromptTokenizer

_TABLES: Final = 256
"""Kept, those used last: jobs may ask for any of millions, of up to 64 kB each."""


class BatchInputBuilder:
    """Knows the model's tokenizer and samplers; keeps tables it has made."""

    def __init__(
        self,
        slots: int,
        info: ModelInfo,
        sampler: DiffusionPrograms,
        tokenizer: PromptTokenizer,
        noise: NoiseSchedule,
    ) -> None:
        self._slots = slots
        self._info = info
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._noise = noise
        self._table_of = lru_cache(_TABLES)(self._make_table)

    def make_every_table(self) -> None:
        """Of each sampler one, the longest: what is wrong with a schedule is no job's fault."""
        steps = self._info.max_num_inference_steps
        for name in self._info.schedulers:
            self._table_of(name, steps, 0)

    def blank(self) -> BatchInputs:
        """A batch of nothing but padding."""
        slots, calls = self._slots, self._info.max_num_inference_steps + EXTRA_CALLS
        return BatchInputs(
            tokens=np.zeros((slots, 2, *self._tokenizer.shape), np.int32),
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
            start=np.zeros((slots, 2), np.float32),
            guidance=np.ones(slots, np.float32),
            rows=np.zeros((slots, calls, COLUMNS), np.float32),
            calls=np.zeros(slots, np.int32),
        )

    def of(self, specs: Sequence[ImageSpec]) -> BatchInputs:
        """
        Raises:
            ValueError: a scheduler this model does not have, or a step count out of range.
        """
        request = self.blank()
        for slot, spec in enumerate(specs):
            table = self._table(spec)
            request.tokens[slot] = self._tokenizer([spec.negative_prompt, spec.prompt])
            request.key[slot] = divmod(spec.seed, 2**32)
            request.image_index[slot] = spec.image_index
            request.start[slot] = start_of(spec, table)
            request.guidance[slot] = spec.guidance_scale
            request.rows[slot] = table.padded(request.rows.shape[1])
            request.calls[slot] = len(table.rows)
        return request

    def blank_originals(self, shape: Shape) -> InitImages:
        """No picture in any slot."""
        slots, given = self._slots, self.nothing_given(shape)
        return InitImages(
            pixels=np.zeros((slots, shape.height, shape.width, 3), np.uint8),
            repaint=given.repaint,
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
        )

    def nothing_given(self, shape: Shape) -> Given:
        """What the slots of a batch have that starts from noise alone."""
        factor, channels = self._sampler.pixels_per_latent, self._sampler.latent_channels
        size = (self._slots, shape.height // factor, shape.width // factor)
        return Given(np.zeros((*size, channels), np.float32), np.ones((*size, 1), np.bool_))

    def originals(self, specs: Sequence[ImageSpec], shape: Shape) -> InitImages | None:
        """The pictures to start from; None if no slot has one.

        Raises:
            ValueError: one of another size.
        """
        if all(spec.original is None for spec in specs):
            return None
        originals, factor = self.blank_originals(shape), self._sampler.pixels_per_latent
        for slot, spec in enumerate(specs):
            if (original := spec.original) is not None:
                if original.pixels.shape != (shape.height, shape.width, 3):
                    raise ValueError(
                        f"an original of {original.pixels.shape}; the shape is {shape}"
                    )
                originals.pixels[slot] = original.pixels
                if original.repaint is not None:  # of each square its first pixel, as torch does
                    originals.repaint[slot] = original.repaint[::factor, ::factor, None]
                originals.key[slot] = divmod(spec.seed, 2**32)
                originals.image_index[slot] = spec.image_index
        return originals

    def _table(self, spec: ImageSpec) -> Table:
        scheduler, steps = spec.scheduler, spec.num_inference_steps
        skipped = steps - spec.steps
        if scheduler not in self._info.schedulers:
            there = ", ".join(self._info.schedulers)
            raise ValueError(f"scheduler {scheduler!r}; there are {there}")
        longest = self._info.max_num_inference_steps
        if not 1 <= steps <= longest:
            raise ValueError(f"{steps} steps; 1 to {longest} are possible")
        if skipped == steps:
            strength = spec.original.strength if spec.original else 1.0
            raise ValueError(f"strength {strength} leaves none of {steps} steps")
        return self._table_of(scheduler, steps, skipped)

    def _make_table(self, scheduler: str, steps: int, skipped: int) -> Table:
        return SCHEDULERS[scheduler](self._noise, steps, skipped)


def start_of(spec: ImageSpec, table: Table) -> tuple[float, float]:
    """Parts of the picture and of the noise in the first latents. All that is to be painted at full
    strength forgets the picture, but only under a mask: so it is in diffusers."""
    original = spec.original
    if original is None or (original.repaint is not None and original.strength == 1):
        return 0.0, table.initial_scale
    return table.start

"""From `ImageSpec`s to the arrays of a batch.

Goes in: specs, as many as there are slots or fewer. Comes out: a `Request` of full size on the
host. Slots left over are padding, which no row of a table ever moves.
"""

from collections.abc import Sequence

import numpy as np

from worker.engine.base import ImageSpec, ModelInfo
from worker.engine.sampling import Request
from worker.engine.schedulers.catalogue import EXTRA_CALLS, SCHEDULERS
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.schedulers.table import COLUMNS, Table
from worker.engine.tokenizer import PromptTokenizer


class RequestMaker:
    """Knows the model's tokenizer and samplers; keeps the tables it has made."""

    def __init__(
        self, slots: int, info: ModelInfo, tokenizer: PromptTokenizer, noise: NoiseSchedule
    ) -> None:
        self._slots = slots
        self._info = info
        self._tokenizer = tokenizer
        self._noise = noise
        self._tables: dict[tuple[str, int], Table] = {}

    def blank(self) -> Request:
        """A batch of nothing but padding."""
        slots, calls = self._slots, self._info.max_num_inference_steps + EXTRA_CALLS
        return Request(
            tokens=np.zeros((slots, 2, *self._tokenizer.shape), np.int32),
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
            initial_scale=np.ones(slots, np.float32),
            guidance=np.ones(slots, np.float32),
            rows=np.zeros((slots, calls, COLUMNS), np.float32),
            calls=np.zeros(slots, np.int32),
        )

    def of(self, specs: Sequence[ImageSpec]) -> Request:
        """
        Raises:
            ValueError: a scheduler this model does not have, or a step count out of range.
        """
        request = self.blank()
        for slot, spec in enumerate(specs):
            table = self._table(spec.scheduler, spec.num_inference_steps)
            request.tokens[slot] = self._tokenizer([spec.negative_prompt, spec.prompt])
            request.key[slot] = divmod(spec.seed, 2**32)
            request.image_index[slot] = spec.image_index
            request.initial_scale[slot] = table.initial_scale
            request.guidance[slot] = spec.guidance_scale
            request.rows[slot] = table.padded(request.rows.shape[1])
            request.calls[slot] = len(table.rows)
        return request

    def _table(self, scheduler: str, steps: int) -> Table:
        if (found := self._tables.get((scheduler, steps))) is not None:
            return found
        if scheduler not in self._info.schedulers:
            there = ", ".join(self._info.schedulers)
            raise ValueError(f"scheduler {scheduler!r}; there are {there}")
        longest = self._info.max_num_inference_steps
        if not 1 <= steps <= longest:
            raise ValueError(f"{steps} steps; 1 to {longest} are possible")
        made = SCHEDULERS[scheduler](self._noise, steps)
        return self._tables.setdefault((scheduler, steps), made)

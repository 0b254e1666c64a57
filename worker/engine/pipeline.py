"""The engine: batches of prompts through compiled programs on a mesh of devices.

Goes in: `ImageSpec`s. Comes out: pictures. Knows nothing of jobs, and nothing of how a checkpoint
is found and read: it gets a sampler and weights.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import NamedSharding

from shared.errors import DeviceError
from worker.engine.base import ImageSpec, ModelInfo, Pictures, Rendering, Shape
from worker.engine.compilation import CompileCounter
from worker.engine.mesh import Placement
from worker.engine.sampling import Request, Sampler, Weights
from worker.engine.schedulers.catalogue import EXTRA_CALLS, SCHEDULERS
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.schedulers.table import COLUMNS, Table
from worker.engine.tokenizer import ClipTokenizer

log = logging.getLogger(__name__)

_AHEAD: Final = 2
"""Steps handed to the devices beyond the one they are known to have done: enough for them never to
wait for us, few enough that a cancelled batch stops soon."""


@dataclass(frozen=True)
class Programs:
    """The executables of one shape."""

    begin: Any
    step: Any
    decode: Any


class DiffusionEngine:
    """See `worker.engine.base.Engine`."""

    def __init__(
        self,
        *,
        info: ModelInfo,
        sampler: Sampler,
        weights: Weights,
        tokenizer: ClipTokenizer,
        noise: NoiseSchedule,
        placement: Placement,
        per_device_batch: int,
        pixels_per_latent: int,
    ) -> None:
        self.info = info
        self.capacity = placement.mesh.size * per_device_batch
        self._sampler = sampler
        self._weights = weights
        self._tokenizer = tokenizer
        self._noise = noise
        self._placement = placement
        self._pixels_per_latent = pixels_per_latent
        self._programs: Mapping[Shape, Programs] = {}
        self._tables: dict[tuple[str, int], Table] = {}
        self._compiled = CompileCounter()
        self._compiled_before_ready = 0

    def warm(self) -> None:
        """Compile every declared shape and run it once."""
        started = time.monotonic()
        self._programs = {shape: self._compile(shape) for shape in self.info.shapes}
        spec = ImageSpec(prompt="", num_inference_steps=1, guidance_scale=2.0)
        for shape in self.info.shapes:
            self.render([spec], shape).pictures()
        self._compiled_before_ready = int(self._compiled)
        log.info("compiled %d shapes in %.1f s", len(self._programs), time.monotonic() - started)

    def render(self, specs: Sequence[ImageSpec], shape: Shape) -> Rendering:
        """Start a batch.

        Raises:
            ValueError: no specs, too many, an undeclared shape or scheduler, too many steps.
            DeviceError: the accelerator failed.
        """
        if shape not in self._programs:
            declared = ", ".join(map(str, self._programs)) or "none: the engine is not warm"
            raise ValueError(f"shape {shape} is not declared (there are: {declared})")
        if not 1 <= len(specs) <= self.capacity:
            raise ValueError(f"{len(specs)} pictures; a batch takes 1 to {self.capacity}")
        request = self._request(specs)
        with device_errors():
            return _Batch(
                self._programs[shape],
                self._weights,
                self._placement.split(request),
                specs=specs,
                calls=int(request.calls.max()),
            )

    def truncated(self, prompt: str) -> bool:
        """Whether the tokenizer cuts this prompt."""
        return self._tokenizer.truncated(prompt)

    @property
    def recompiles(self) -> int:
        """Programs compiled since `warm` returned."""
        return int(self._compiled) - self._compiled_before_ready

    def _compile(self, shape: Shape) -> Programs:
        factor = self._pixels_per_latent
        size = (shape.height // factor, shape.width // factor)
        by_slot = self._placement.by_slot

        def begin(weights: Weights, request: Request) -> Any:
            return self._sampler.begin(weights, request, size)

        blank = jax.tree.map(lambda x: _abstract(x, by_slot), self._blank())
        begin_ = jax.jit(begin, out_shardings=by_slot).lower(self._weights, blank).compile()
        conditions, state = jax.tree.map(
            lambda x: _abstract(x, by_slot), jax.eval_shape(begin, self._weights, blank)
        )
        step = jax.jit(self._sampler.step, out_shardings=by_slot, donate_argnums=2)
        decode = jax.jit(self._sampler.decode, out_shardings=by_slot)
        return Programs(
            begin=begin_,
            step=step.lower(self._weights, conditions, state).compile(),
            decode=decode.lower(self._weights, state).compile(),
        )

    def _blank(self) -> Request:
        """A batch of nothing but padding."""
        slots, calls = self.capacity, self.info.max_num_inference_steps + EXTRA_CALLS
        return Request(
            tokens=np.zeros((slots, 2, self._tokenizer.length), np.int32),
            key=np.zeros((slots, 2), np.uint32),
            image_index=np.zeros(slots, np.uint32),
            initial_scale=np.ones(slots, np.float32),
            guidance=np.ones(slots, np.float32),
            rows=np.zeros((slots, calls, COLUMNS), np.float32),
            calls=np.zeros(slots, np.int32),
        )

    def _request(self, specs: Sequence[ImageSpec]) -> Request:
        request = self._blank()
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
        if scheduler not in self.info.schedulers:
            raise ValueError(
                f"scheduler {scheduler!r}; there are {', '.join(self.info.schedulers)}"
            )
        if not 1 <= steps <= self.info.max_num_inference_steps:
            raise ValueError(
                f"{steps} steps; 1 to {self.info.max_num_inference_steps} are possible"
            )
        return self._tables.setdefault(
            (scheduler, steps), SCHEDULERS[scheduler](self._noise, steps)
        )


class _Batch:
    """See `worker.engine.base.Rendering`."""

    def __init__(
        self,
        programs: Programs,
        weights: Weights,
        request: Request,
        *,
        specs: Sequence[ImageSpec],
        calls: int,
    ) -> None:
        self._programs = programs
        self._weights = weights
        self._specs = specs
        self._calls = calls
        self._steps = max(spec.num_inference_steps for spec in specs)
        self._conditions, self._state = programs.begin(weights, request)
        self._decoded: tuple[jax.Array, jax.Array] | None = None

    def __iter__(self) -> Iterator[int]:
        """Advance to the end; decoding starts before the last step is reported."""
        flying: deque[jax.Array] = deque()
        with device_errors():
            for call in range(1, self._calls + 1):
                self._state, done = self._programs.step(
                    self._weights, self._conditions, self._state
                )
                flying.append(done)
                if len(flying) > _AHEAD:
                    flying.popleft().block_until_ready()
                    yield min(call - _AHEAD, self._steps)
            self._decode()
            for call in range(self._calls - len(flying) + 1, self._calls + 1):
                flying.popleft().block_until_ready()
                yield min(call, self._steps)

    def pictures(self) -> Pictures:
        """Wait for the devices.

        Raises:
            DeviceError: they failed, or a picture is not made of finite numbers.
        """
        if self._decoded is None:
            for _ in self:
                pass
        with device_errors():
            assert self._decoded is not None
            pictures, finite = (np.asarray(array) for array in self._decoded)
        broken = [index for index in range(len(self._specs)) if not finite[index]]
        if broken:
            raise DeviceError(
                f"{len(broken)} of {len(self._specs)} pictures came out as NaN or infinity, the "
                f"first for prompt {self._specs[broken[0]].prompt[:60]!r}"
            )
        return pictures[: len(self._specs)]

    def _decode(self) -> None:
        self._decoded = self._programs.decode(self._weights, self._state)
        for array in self._decoded:
            array.copy_to_host_async()


def _abstract(array: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        array.shape, array.dtype, sharding=sharding
    )


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn the runtime's errors into ours."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"the devices failed on a batch: {reason}") from error

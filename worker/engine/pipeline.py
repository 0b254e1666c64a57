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
from worker.engine.requests import RequestMaker
from worker.engine.sampling import Request, Sampler, Weights
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.tokenizer import PromptTokenizer

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
        tokenizer: PromptTokenizer,
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
        self._requests = RequestMaker(self.capacity, info, tokenizer, noise)
        self._placement = placement
        self._pixels_per_latent = pixels_per_latent
        self._programs: Mapping[Shape, Programs] = {}
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
        request = self._requests.of(specs)
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

        def begin_sized(weights: Weights, request: Request) -> Any:
            return self._sampler.begin(weights, request, size)

        begin = jax.jit(begin_sized, out_shardings=by_slot)
        step = jax.jit(self._sampler.step, out_shardings=by_slot, donate_argnums=2)
        decode = jax.jit(self._sampler.decode, out_shardings=by_slot)
        blank = _abstract(self._requests.blank(), by_slot)
        conditions, state = _abstract(jax.eval_shape(begin, self._weights, blank), by_slot)
        return Programs(
            begin=begin.lower(self._weights, blank).compile(),
            step=step.lower(self._weights, conditions, state).compile(),
            decode=decode.lower(self._weights, state).compile(),
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
        self._live = set(range(len(specs)))
        self._steps = max(spec.num_inference_steps for spec in specs)
        self._conditions, self._state = programs.begin(weights, request)
        self._decoded: tuple[jax.Array, jax.Array] | None = None

    def __iter__(self) -> Iterator[int]:
        """Advance to the end; decoding starts before the last step is reported.

        Once more from the start is harmless: a slot stops at its last row.
        """
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
                if not self._live:
                    return
            self._decode()
            for call in range(self._calls - len(flying) + 1, self._calls + 1):
                flying.popleft().block_until_ready()
                yield min(call, self._steps)

    def drop(self, slots: Sequence[int]) -> None:
        """The batch ends when every slot was dropped."""
        self._live -= set(slots)

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


def _abstract(tree: Any, sharding: NamedSharding) -> Any:
    """Shapes, dtypes and places of arrays, without the arrays."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            x.shape, x.dtype, sharding=sharding
        ),
        tree,
    )


@contextmanager
def device_errors() -> Iterator[None]:
    """Turn the runtime's errors into ours."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise DeviceError(f"the devices failed on a batch: {reason}") from error

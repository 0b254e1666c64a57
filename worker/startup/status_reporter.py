"""Report the status of this worker: in Redis with each heartbeat, as metrics, and to systemd."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final, Self

from imagefleet.shared.jobs.worker_status import Member, WorkerState, WorkerStatus
from imagefleet.shared.text.printable import mask_credentials, printable
from imagefleet.worker.bulk.writable_formats import (
    writable_image_formats,
    writable_shard_formats,
)
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.engine.contract.interface import Engine
from imagefleet.worker.process import metrics
from imagefleet.worker.process.systemd import notify_systemd

_RATES_OVER_S: Final = 60.0
_MAX_ERROR_CHARACTERS: Final = 300


class StatusReporter:
    """Reports one worker. The lease keeper stores its status at each heartbeat."""

    def __init__(
        self,
        worker: str,
        engine: Engine,
        member: Member,
        health: HealthCheck,
        count_claims: Callable[[], int],
        count_shards: Callable[[], int],
        on_drain_requested: Callable[[], None],
        lease_s: float,
        other_lanes_answer: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Args:
            worker: the name that leases and claims have, too.
            member: what other hosts compare with their own.
            count_claims: returns the number of messages that the worker holds.
            count_shards: returns how many of them are shards of datasets.
            on_drain_requested: called once, if somebody asks this worker to drain.
            lease_s: seconds without a report after which the worker is not ready.
            other_lanes_answer: returns whether it has leases in lanes beside the first, to which it
                reports. Then it is ready also without a report.
        """
        self._worker = worker
        self._engine = engine
        self._member = member
        self._health = health
        self._count_claims = count_claims
        self._count_shards = count_shards
        self._on_drain_requested = on_drain_requested
        self._lease_s = lease_s
        self._other_lanes_answer = other_lanes_answer
        self._reported_at = time.monotonic()
        self._version = version("imagefleet")  # reads a file
        self._shard_formats = writable_shard_formats()
        self._image_formats = writable_image_formats()
        self._started_at = time.time()
        self.joined = False
        """Whether the worker belongs to its fleet. Before that it takes no work."""
        self._draining = False
        self._drain_requested = False
        self._history = deque([_Counts.now()])
        self._errors = _LatestError()
        logging.getLogger("imagefleet").addHandler(self._errors)
        info = {"worker": worker, "version": self._version, "devices": engine.devices}
        metrics.WORKER.info({**info, "model": engine.info.name, "digest": engine.info.digest})
        metrics.CAPACITY.set(engine.capacity)
        _measure(engine)
        metrics.IN_FLIGHT.set_function(count_claims)
        metrics.READY.set_function(lambda: self.not_ready_reason() is None)

    def not_ready_reason(self) -> str | None:
        """Return why the worker takes no work, or None while it takes work."""
        if self._draining:
            return "draining"
        if self._health.quarantined:
            return f"quarantined: {self._errors.line}"
        is_late = time.monotonic() - self._reported_at > self._lease_s
        if is_late and not self._other_lanes_answer():
            return "Redis does not answer"
        return None

    def drain(self) -> None:
        """Say from now on that the worker is draining."""
        self._draining = True
        notify_systemd("STOPPING=1")

    def status(self) -> str:
        """Return what Redis is to store of this worker."""
        if self.joined:
            notify_systemd("READY=1")
        return self.current().dump()

    def on_status_stored(self, *, drain_requested: bool) -> None:
        """Note that Redis has stored the status. Drain if somebody asked for it."""
        self._reported_at = time.monotonic()
        if drain_requested and not self._drain_requested:
            self._drain_requested = True
            self._on_drain_requested()

    def current(self) -> WorkerStatus:
        """Return the status now."""
        self._history.append(now := _Counts.now())
        while len(self._history) > 2 and now.at - self._history[1].at >= _RATES_OVER_S:
            self._history.popleft()
        done = now.since(self._history[0])
        slots = done.used + done.padding
        state = self._state()
        return WorkerStatus(
            worker=self._worker,
            state=state,
            version=self._version,
            model=self._engine.info.name,
            shapes=tuple(str(shape) for shape in self._engine.info.shapes),
            shard_formats=self._shard_formats,
            image_formats=self._image_formats,
            member=self._member,
            devices=self._engine.devices,
            capacity=self._engine.capacity,
            claims=self._count_claims(),
            shards=self._count_shards(),
            images=round(now.images),
            images_per_s=round(done.images / done.at, 3) if done.at else 0.0,
            batch_fill=round(done.used / slots, 3) if slots else None,
            step_s=round(done.step_s / done.steps, 5) if done.steps else None,
            step_s_by_shape=_step_s_by_shape(),
            bytes_per_pixel=_bytes_per_pixel(),
            busy=round(min(1.0, done.busy_s / done.at), 3) if done.at else 0.0,
            last_error=self._errors.line,
            last_error_at=self._errors.at,
            recovered=state is WorkerState.READY and self._errors.is_past(),
            started_at=self._started_at,
            reported_at=time.time(),
        )

    def _state(self) -> WorkerState:
        if self._draining:
            return WorkerState.DRAINING
        if not self.joined:
            return WorkerState.JOINING
        return WorkerState.QUARANTINED if self._health.quarantined else WorkerState.READY


def _step_s_by_shape() -> dict[str, float]:
    """Return the mean seconds of a step by shape, longer by the share of the busy time that passed
    between the steps of one batch and those of the next."""
    in_steps = metrics.total(metrics.STEP_SECONDS, "sum")
    if not in_steps:
        return {}
    longer = max(1.0, metrics.total(metrics.BUSY_SECONDS) / in_steps)
    found = {}
    for shape in metrics.label_values(metrics.STEP_SECONDS, "shape"):
        if steps := metrics.total(metrics.STEP_SECONDS, "count", shape=shape):
            mean = metrics.total(metrics.STEP_SECONDS, "sum", shape=shape) / steps
            found[shape] = round(longer * mean, 6)
    return found


def _bytes_per_pixel() -> dict[str, float]:
    found = {}
    for kind in metrics.label_values(metrics.FILE_PIXELS, "format"):
        if pixels := metrics.total(metrics.FILE_PIXELS, format=kind):
            found[kind] = round(metrics.total(metrics.FILE_BYTES, format=kind) / pixels, 4)
    return found


def _measure(engine: Engine) -> None:
    """Let the metrics read the engine when Prometheus asks: a device that hangs must not delay a
    heartbeat."""
    for device, _ in enumerate(engine.memory()):
        for of in ("used", "limit"):
            read = partial(_read_memory, engine, device, of)
            metrics.DEVICE_MEMORY.labels(str(device), of).set_function(read)
    metrics.RECOMPILES.set_function(lambda: engine.recompiles)
    metrics.TEXT_CACHE.labels("hits").set_function(lambda: engine.text_cache.hits)
    metrics.TEXT_CACHE.labels("misses").set_function(lambda: engine.text_cache.misses)
    metrics.TEXT_CACHE.labels("stored").set_function(lambda: engine.text_cache.stored)
    metrics.TEXT_CACHE.labels("bytes").set_function(lambda: engine.text_cache.bytes)


def _read_memory(engine: Engine, device: int, of: str) -> float:
    return float(getattr(engine.memory()[device], of))


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """The counters of this process at one moment, or what they grew by."""

    at: float
    """It is a time in seconds."""
    images: float
    used: float
    padding: float
    steps: float
    step_s: float
    busy_s: float

    @classmethod
    def now(cls) -> Self:
        padding = metrics.total(metrics.SLOTS, use="padding")
        return cls(
            at=time.monotonic(),
            images=metrics.total(metrics.IMAGES),
            used=metrics.total(metrics.SLOTS) - padding,
            padding=padding,
            steps=metrics.total(metrics.STEP_SECONDS, "count"),
            step_s=metrics.total(metrics.STEP_SECONDS, "sum"),
            busy_s=metrics.total(metrics.BUSY_SECONDS),
        )

    def since(self, earlier: Self) -> Self:
        names = self.__dataclass_fields__
        return type(self)(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


class _LatestError(logging.Handler):
    """Keeps the latest error line of the log, its time, and how many images there were before."""

    line = ""
    at = 0.0
    _images = 0.0

    def __init__(self) -> None:
        super().__init__(logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        text = mask_credentials(record.getMessage())
        self.line, self.at = printable(text, _MAX_ERROR_CHARACTERS), record.created
        self._images = metrics.total(metrics.IMAGES)

    def is_past(self) -> bool:
        """Return whether the devices have finished an image since the error."""
        return bool(self.line) and metrics.total(metrics.IMAGES) > self._images

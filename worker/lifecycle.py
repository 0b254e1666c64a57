"""The life of a worker process: start, take work, drain, quit.

`start` fails with one clear sentence before any work is taken; after it the model is loaded, every
declared shape compiled, and the worker ready. `drain` is its opposite.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Final

from imagefleet.shared.bulk.messages import unpack_shard
from imagefleet.shared.errors import LeaseLost
from imagefleet.worker.bootstrap import Callbacks, WorkerParts, build, open_stores
from imagefleet.worker.bulk.make_shard import make_shard
from imagefleet.worker.devices.work import Slot
from imagefleet.worker.engine.interface import Engine, ModelInfo
from imagefleet.worker.jobs.attempt import attempts_in, offer_of
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.preemption import watch
from imagefleet.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_DRAIN_GRACE_S: Final = 10.0
_QUIT_S: Final = 3.0
"""What Redis gets to answer a worker that leaves at once."""
_DRAINING: Final = LeaseLost("this worker leaves")


class Lifecycle:
    """Start and stop one worker process. Made without side effects; `start` makes them."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises ConfigurationError: the address of a store is none."""
        self.settings = settings
        self._stores = open_stores(settings)
        self._parts: WorkerParts | None = None
        self._running = False
        self._asked_to_stop = False

    @property
    def parts(self) -> WorkerParts:
        """The parts of the worker; they exist once `start` has returned."""
        assert self._parts is not None, "not started"
        return self._parts

    def start(self) -> None:
        """Check Redis and storage, load and compile the model, announce it.

        Raises:
            ImagefleetError: which part is wrong and what to do.
        """
        started = time.monotonic()
        callbacks = Callbacks(
            on_lease_lost=self._abandon_all,
            on_hang=self._leave_hung_devices,
            on_devices_failed=self._give_up,
        )
        self._parts = build(self.settings, self._stores, callbacks)
        engine = self._parts.engine
        self._parts.offers.announce(offer_of(engine.info))
        log.info("ready after %.1f s: %s", time.monotonic() - started, _describe(engine))

    def take_work(self) -> None:
        """Begin to claim. Again after a reconnect: nothing happens."""
        if not self._running:
            parts = self.parts
            parts.lease_keeper.start()
            parts.progress.start()
            parts.device_loop.start()
            parts.watchdog.start()
            parts.run_recovery.start()
            self._running = True
            if self.settings.preemption_url is not None:
                watch(self.settings.preemption_url, self._leave_preempted_host)

    def make_shard(self, asked: object, tag: str) -> None:
        """See a claimed shard of a dataset to its end, in a pool thread. Raises LeaseLost."""
        make_shard(self.parts.shards, unpack_shard(asked), tag)

    def stop_taking(self) -> None:
        """Take no further batch. Asked a second time, hand everything back and quit."""
        if self._asked_to_stop:
            self.quit()
        self._asked_to_stop = True
        self._leave_anyway_after(self.settings.drain_s + _DRAIN_GRACE_S)
        if self._running:
            self.parts.dispatcher.close()
            self.parts.device_loop.stop()

    def drain(self) -> None:
        """Hand back at once what no device has seen; finish the rest within `drain_s`, or hand it
        back too. Every way out of a worker comes through here; a second time nothing happens."""
        if not self._running:
            return
        self._running = False
        if not self._asked_to_stop:
            self._leave_anyway_after(self.settings.drain_s + _DRAIN_GRACE_S)
        parts = self.parts
        deadline = time.monotonic() + self.settings.drain_s
        parts.dispatcher.close()
        parts.device_loop.stop()
        handed_back = parts.executor.requeue(parts.dispatcher.put_down())
        parts.backlog.close(_DRAINING)
        begun = [each.tag for each in parts.in_flight.attempts()] + parts.backlog.tags()
        parts.device_loop.join(self.settings.drain_s)
        parts.backlog.abandon(_DRAINING)
        while any(parts.claims.holds(tag) for tag in begun) and time.monotonic() < deadline:
            time.sleep(0.02)  # until Celery has stored the result and acknowledged
        handed_back += parts.executor.requeue(parts.in_flight.attempts())
        parts.watchdog.stop()
        parts.run_recovery.stop()
        parts.lease_keeper.stop()
        handed_back += parts.claims.leave()
        log.info("drained; handed back: %d", handed_back)
        parts.progress.stop()
        parts.delivery.stop()

    def quit(self) -> None:
        """Hand everything back now and end the process. Redis has a moment for it."""
        self._leave_anyway_after(_QUIT_S)
        try:
            parts = self.parts
            parts.dispatcher.close()
            parts.dispatcher.put_down()
            handed_back = parts.executor.requeue(parts.in_flight.attempts())
            handed_back += parts.claims.leave()
            log.warning("quitting; handed back: %d", handed_back)
        finally:
            os._exit(ExitCode.TEMPFAIL)

    def _leave_preempted_host(self) -> None:
        log.warning("the platform is about to take this host away")
        self.quit()

    def _give_up(self, batch: Sequence[Slot], waiting: Sequence[Slot]) -> None:
        """Sick devices had `batch`. That counts as a delivery, like a worker that died, so that a
        prompt which does it to them is bounded. What only waited goes back uncounted."""
        executor = self.parts.executor
        hurt = attempts_in(batch)
        self._put_down_shards(batch)
        others = dict.fromkeys([*attempts_in(waiting), *self.parts.dispatcher.put_down()])
        executor.requeue([each for each in others if each not in hurt])
        executor.requeue(hurt, counted=True)

    def _leave_hung_devices(self) -> None:
        """As `_give_up`, and end the process: nothing else frees a hung device."""
        self._leave_anyway_after(_DRAIN_GRACE_S, ExitCode.IOERR)
        parts = self.parts
        parts.dispatcher.close()
        parts.device_loop.stop()
        parts.dispatcher.put_down()
        hung = attempts_in(parts.device_loop.on_devices())
        self._put_down_shards(parts.device_loop.on_devices())
        parts.executor.requeue([each for each in parts.in_flight.attempts() if each not in hung])
        parts.executor.requeue(hung, counted=True)
        parts.claims.leave()
        logging.shutdown()
        os._exit(ExitCode.IOERR)

    def _abandon_all(self) -> None:
        """The lease ran out: every job begun here is another worker's now. Devices drop it."""
        for attempt in self.parts.in_flight.attempts():
            attempt.abandon(LeaseLost(f"job {attempt.job_id}: the lease ran out"))
        self.parts.backlog.abandon(LeaseLost("the lease ran out"))

    def _put_down_shards(self, batch: Sequence[Slot]) -> None:
        """Release every shard held; those with a row in `batch` count one more delivery."""
        self.parts.claims.requeue(*self.parts.backlog.tags_in(batch), counted=True)
        self.parts.backlog.abandon(LeaseLost("the devices are sick"))

    def _leave_anyway_after(self, seconds: float, code: ExitCode = ExitCode.TEMPFAIL) -> None:
        """Redis may be away, or a pool thread may hang: the lease does the rest."""
        timer = threading.Timer(seconds, os._exit, [code])
        timer.daemon = True
        timer.start()


def _describe(engine: Engine) -> str:
    info: ModelInfo = engine.info
    shapes = ", ".join(str(shape) for shape in info.shapes)
    return f"{info.name}, {engine.capacity} pictures a batch, shapes {shapes}"

"""A worker process starts, takes work, and drains or quits.

`start` raises an error that names the fault before any work is claimed. Once it returns, the model
is loaded, every declared shape is compiled, and the worker is ready. `drain` undoes it.
"""

import logging
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from typing import Final

from imagefleet.shared.bulk.shard_message import unpack_shard
from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.failed_attempts import DEVICES_FAILED, WORKER_DIED
from imagefleet.shared.process.malloc import return_large_buffers
from imagefleet.shared.storage import place_of
from imagefleet.shared.text.printable import mask_url
from imagefleet.worker.bulk.make_shard import make_shard
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.jobs.attempt import Attempt, attempts_in, offer_of
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.process.preemption import watch_for_notice
from imagefleet.worker.process.status_server import StatusServer
from imagefleet.worker.process.tracing import start_tracing
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.bootstrap import build
from imagefleet.worker.startup.drain import DRAIN_GRACE_S, DrainTime, end_without, force_exit_after
from imagefleet.worker.startup.join_fleet import FleetJoin
from imagefleet.worker.startup.log_texts import describe_callbacks, describe_engine, describe_jobs
from imagefleet.worker.startup.stores import open_stores
from imagefleet.worker.startup.worker_parts import ProcessHooks, WorkerParts, stop_upkeep

log = logging.getLogger(__name__)

_JOIN_S: Final = 0.2
"""Seconds after which a drain looks again how much time is left."""
_QUIT_TIMEOUT_S: Final = 3.0
"""Seconds that Redis has to answer a worker that quits."""
_DRAINING: Final = LeaseLost("this worker is draining")


class Lifecycle:
    """The life cycle starts and stops one worker process. The constructor has no side effects."""

    def __init__(self, settings: WorkerSettings) -> None:
        """
        Raises:
            ConfigurationError: the address of a store, or an allowed destination, is not valid.
        """
        self.settings = settings
        self._stores = open_stores(settings)
        self._parts: WorkerParts | None = None
        self._joining: FleetJoin | None = None
        """It holds the lease from before `join` until this worker takes work."""
        self._running = False
        self._stop_requested = False
        self._drain_requested = False
        self._drain_time = DrainTime(settings.drain_s, settings.preempted_drain_s)
        self._send_spans: Callable[[], object] = lambda: None

    @property
    def parts(self) -> WorkerParts:
        """Return the parts of the worker, which exist once `start` has returned."""
        assert self._parts is not None, "not started"
        return self._parts

    def start(self, queues: Sequence[str] | None = None) -> None:
        """Check Redis and storage, load and compile the model, join the fleet, and announce it.

        Args:
            queues: those that this worker was told to serve. None: all of its model.

        Raises:
            ImagefleetError: it says which part is wrong and what to do.
        """
        started = time.monotonic()
        self._serve_status()
        if self.settings.traces:
            self._send_spans = start_tracing(f"{platform.node()}:{os.getpid()}")
        hooks = ProcessHooks(
            on_lease_lost=self._on_lease_lost,
            on_hang=self._on_devices_hung,
            on_devices_failed=self._on_devices_failed,
            on_drain_requested=self.request_drain,
        )
        parts = build(self.settings, self._stores, hooks, queues)
        self._joining = parts.fleet
        self._joining.join()
        self._parts, engine = parts, parts.engine
        if not engine.uses_host_memory:
            return_large_buffers()
        if not self._joining.is_late:  # else the lease keeper of the first lane does it
            self._announce()
        store = mask_url(place_of(self.settings.storage_url, self._stores.images))
        log.info(
            "ready after %.1f s: %s, images go to %s",
            time.monotonic() - started,
            describe_engine(engine),
            store,
        )

    def _announce(self) -> None:
        """Tell producers what this worker offers."""
        offer = offer_of(self.parts.engine.info, storage_url=self._stores.images_url)
        self.parts.offers.announce(offer, default=self.settings.serves_default)

    def _serve_status(self) -> None:
        settings = self.settings
        if settings.metrics_port is not None:
            address = settings.metrics_host, settings.metrics_port
            port = StatusServer(*address, self._not_ready_reason, settings.namespace).start()
            log.info("metrics and health on %s port %d", settings.metrics_host, port)

    def _not_ready_reason(self) -> str | None:
        reason = None if self._parts is None else self._parts.status.not_ready_reason()
        return reason if reason or self._running else "starting"

    def take_work(self) -> None:
        """Start the threads that claim and run work. After a reconnect they run already. Raises
        ConfigurationError if the lease ran out meanwhile and a worker that differs has joined."""
        if not self._running:
            parts = self.parts
            parts.fleet.join_again_if_expired()
            for lane in parts.upkeep:
                lane.start()
            self._joining = None
            parts.device_loop.start()
            parts.watchdog.start()
            self._running = True
            if self.settings.preemption_url is not None:
                watch_for_notice(self.settings.preemption_url, self._on_preemption_notice)

    def make_shard(self, arguments: object, tag: str) -> None:
        """Make a claimed shard of a dataset in this thread, one of Celery's pool.

        Raises:
            LeaseLost: another worker has the shard now.
        """
        context = self.parts.shards[self.parts.jobs.claims.number_of(tag)]
        make_shard(context, unpack_shard(arguments), tag)

    def stop_claiming(self, *, at_once: bool = False) -> None:
        """Claim no further work. If `at_once`, or on the second call, requeue everything and end.

        A worker that is not built yet holds no work, and ends at once: it may compile for minutes.
        """
        if self._parts is None:
            log.warning("stopped before it was ready; nothing was claimed")
            force_exit_after(_QUIT_TIMEOUT_S)
            self.leave()
            os._exit(0)
        if at_once or self._stop_requested:
            self.quit()
        self._stop_requested = True
        self.parts.status.drain()
        if self._drain_requested:
            self._drain_time.begin()
        else:
            self._drain_time.begin_for_signal()
        if self._running:
            self.parts.dispatcher.close()
            self.parts.device_loop.stop()

    def drain(self) -> None:
        """Requeue the jobs that are not on the devices; finish the others in the time that is left,
        or requeue them too.

        Celery calls this however a worker stops. A second call does nothing.
        """
        if not self._running:
            return
        self._running = False
        drain_time = self._drain_time
        drain_time.begin()
        parts = self.parts
        parts.status.drain()
        started = parts.jobs.attempts()
        parts.dispatcher.close()
        parts.device_loop.stop()
        waiting = self._pop_waiting()
        requeued = parts.jobs.requeue(waiting)
        parts.backlog.close(_DRAINING)
        running = [each.tag for each in parts.jobs.attempts() if each not in waiting]
        running += parts.backlog.tags()
        while drain_time.left_s() and not parts.device_loop.join(min(_JOIN_S, drain_time.left_s())):
            pass  # the time that is left may have become shorter
        requeued += parts.jobs.requeue(self._pop_waiting())
        parts.backlog.abandon(_DRAINING)
        while any(map(parts.jobs.claims.may_end, running)) and drain_time.left_s():
            time.sleep(0.02)  # until Celery has stored the results and acknowledged the messages
        requeued += parts.jobs.requeue(parts.jobs.attempts())
        left = [each for each in parts.jobs.attempts() if parts.jobs.claims.holds(each.tag)]
        end_without(left)
        parts.watchdog.stop()
        stop_upkeep(parts.upkeep)
        others = parts.jobs.claims.release_all()
        log.info(
            "drained: %s ended; %s requeued; callbacks that wait in the fleet: %s",
            describe_jobs([each for each in started if each not in [*requeued, *left]]),
            describe_jobs(list(dict.fromkeys(requeued)), others),
            describe_callbacks(parts.outboxes),
        )
        parts.delivery.stop()
        self._send_spans()

    def _pop_waiting(self) -> list[Attempt]:
        """Remove and return the attempts of which no image has reached the devices."""
        parts = self.parts
        waiting = attempts_in(parts.device_loop.pop_waiting())
        return list(dict.fromkeys([*waiting, *parts.dispatcher.release_waiting()]))

    def leave(self) -> None:
        """Release the lease of a worker that has not begun to take work; else do nothing."""
        if self._joining is not None:
            self._drain_time.begin()
            self._joining.leave()

    def quit(self) -> None:
        """Requeue everything and end the process, within `_QUIT_TIMEOUT_S`."""
        force_exit_after(_QUIT_TIMEOUT_S)
        try:
            parts = self.parts
            parts.dispatcher.close()
            parts.dispatcher.release_waiting()
            requeued = parts.jobs.requeue(parts.jobs.attempts())
            others = parts.jobs.claims.release_all()
            log.warning("quitting: %s requeued", describe_jobs(requeued, others))
        finally:
            os._exit(ExitCode.TEMPFAIL)

    def _on_preemption_notice(self) -> None:
        log.warning("preemption notice received: the platform is about to take this host away")
        self._drain_time.begin_for_preempted_host()
        self.request_drain()

    def request_drain(self) -> None:
        """Drain as SIGTERM does. A request while the worker drains already changes nothing."""
        log.warning("this worker was asked to drain")
        self._drain_requested = True
        if not self._stop_requested:
            os.kill(os.getpid(), signal.SIGTERM)  # Celery then stops as for any SIGTERM

    def _on_devices_failed(
        self, batch: Sequence[Slot], waiting: Sequence[Slot], reason: str
    ) -> None:
        """Requeue the jobs of `batch`, on which the devices failed, and the waiting ones.

        Those of `batch` count a delivery, as if the worker had died, and keep the `reason`: so a
        prompt that breaks devices is given up after `max_deliveries`. The others count none.
        """
        jobs = self.parts.jobs
        failed = attempts_in(batch)
        self._release_shards(batch)
        others = dict.fromkeys([*attempts_in(waiting), *self.parts.dispatcher.release_waiting()])
        jobs.requeue([each for each in others if each not in failed])
        jobs.requeue(failed, counted=True, failure=(DEVICES_FAILED, reason))

    def _on_devices_hung(self, stream: int) -> None:
        """Requeue everything and end the process: nothing else frees a hung device.

        The jobs of the stream that hangs count a delivery, as in `_on_devices_failed`.
        """
        force_exit_after(DRAIN_GRACE_S, ExitCode.IOERR)
        parts = self.parts
        parts.dispatcher.close()
        parts.device_loop.stop()
        parts.dispatcher.release_waiting()
        hung_slots = parts.device_loop.on_devices(stream)
        hung = attempts_in(hung_slots)
        self._release_shards(hung_slots)
        parts.jobs.requeue([each for each in parts.jobs.attempts() if each not in hung])
        parts.jobs.requeue(hung, counted=True, failure=(WORKER_DIED, "its devices hung"))
        parts.jobs.claims.release_all()
        logging.shutdown()
        os._exit(ExitCode.IOERR)

    def _on_lease_lost(self, lane: int) -> None:
        """Abandon every attempt and row of a lane: others have them now. The devices drop them.

        The offers are announced again, because a Redis that was emptied has lost them too.
        """
        jobs = self.parts.jobs
        for attempt in jobs[lane].in_flight.attempts():
            attempt.abandon(LeaseLost(f"job {attempt.job_id}: the lease ran out"))
        lost = [tag for tag in self.parts.backlog.tags() if jobs.of(tag) is jobs[lane]]
        self.parts.backlog.abandon(LeaseLost("the lease ran out"), lost)
        if lane == 0:
            self.parts.fleet.compare_if_late(self.request_drain)
            self._announce()

    def _release_shards(self, batch: Sequence[Slot]) -> None:
        """Release every shard. Those with a row in `batch` count a delivery."""
        self.parts.jobs.claims.requeue(*self.parts.backlog.tags_in(batch), counted=True)
        self.parts.backlog.abandon(LeaseLost("the devices of this worker failed"))

"""One worker process, wired: the only place where its parts learn of each other.

`start` fails with one clear sentence before any work is taken; after it the model is loaded, every
declared shape compiled, and the host ready. `drain` is its opposite.
"""

import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from imagefleet.shared.bulk.messages import unpack_shard
from imagefleet.shared.bulk.runs import Runs
from imagefleet.shared.errors import (
    ConfigurationError,
    LeaseLost,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.offers import Catalogue
from imagefleet.shared.jobs.records import Records
from imagefleet.shared.redis_client.connection import UNTIL_IT_IS_BACK, check_connection, connect
from imagefleet.shared.storage import open_store
from imagefleet.worker.attempts import Slot, attempts_in, offer_of
from imagefleet.worker.beginning import Beginner
from imagefleet.worker.bulk.backlog import Backlog
from imagefleet.worker.bulk.caretaker import Caretaker
from imagefleet.worker.bulk.making import make_shard
from imagefleet.worker.bulk.workshop import Workshop
from imagefleet.worker.claims import Claims
from imagefleet.worker.delivery import start_delivery
from imagefleet.worker.engine.base import Engine, ModelInfo
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.exits import Exit
from imagefleet.worker.finish import Finisher
from imagefleet.worker.health import Health
from imagefleet.worker.intake import Intake
from imagefleet.worker.keeper import Keeper
from imagefleet.worker.originals import Originals
from imagefleet.worker.outbound.addresses import AllowList
from imagefleet.worker.performing import Performer
from imagefleet.worker.preemption import watch
from imagefleet.worker.progress import ProgressReporter
from imagefleet.worker.retries import Retries
from imagefleet.worker.runner import Runner
from imagefleet.worker.settings import WorkerSettings
from imagefleet.worker.watchdog import Watchdog

log = logging.getLogger(__name__)

_DRAIN_GRACE_S: Final = 10.0
_QUIT_S: Final = 3.0
"""What Redis gets to answer a worker that leaves at once."""
_DRAINING: Final = LeaseLost("this worker leaves")
_ENCODERS: Final = min(4, os.cpu_count() or 1)
"""Threads that encode the pictures of datasets."""


class Host:
    """Everything a worker process owns. Made without side effects; `start` makes them."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises ConfigurationError: the address of a store is none."""
        self.settings = settings
        self._store = open_store(settings.storage_url)
        shared = settings.programs_url
        self._programs = None if shared is None else open_store(shared, "IMAGEFLEET_PROGRAMS_URL")
        self.name = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._running = False
        self._asked_to_stop = False

    def start(self) -> None:
        """Check Redis and storage, load and compile the model, announce it.

        Raises:
            ImagefleetError: which part is wrong and what to do.
        """
        started = time.monotonic()
        self._connect()
        self._delivery = start_delivery(self._patient, self.settings)
        self.engine = self._load_engine()
        self.engine.warm()
        self._make_claims()
        self._make_workshop()
        self._make_intake()
        self._make_performer()
        self._make_device_loop()
        self._make_keeper()
        Catalogue(self._patient, self.settings.namespace).announce(offer_of(self.engine.info))
        log.info("ready after %.1f s: %s", time.monotonic() - started, _describe(self.engine))

    def _connect(self) -> None:
        url = self.settings.redis_url.get_secret_value()
        self._once = connect(url, retries=0)
        check_connection(self._once, url)
        self._patient = connect(url, retries=UNTIL_IT_IS_BACK)
        try:
            self._store.check()
        except (ConfigurationError, StorageDenied, StorageUnavailable) as error:
            raise type(error)(f"IMAGEFLEET_STORAGE_URL: {error}") from error

    def _load_engine(self) -> Engine:
        settings = self.settings
        secret = settings.programs_secret
        return load_engine(
            settings.model,
            shapes=settings.declared_shapes(),
            per_device_batch=settings.per_device_batch,
            mesh=settings.mesh,
            devices=settings.devices,
            dtype=settings.dtype,
            cache_dir=settings.cache_dir,
            programs=self._programs,
            programs_secret=secret.get_secret_value() if secret else "",
            max_num_inference_steps=settings.max_num_inference_steps,
            safety_checker=settings.safety_checker,
        )

    def _make_claims(self) -> None:
        settings = self.settings
        self._records = Records(self._patient, settings.namespace, settings.retention_s)
        self._dead = DeadLetters(self._patient, settings.namespace)
        self._claims = Claims(
            once=self._once,
            patient=self._patient,
            namespace=settings.namespace,
            worker=self.name,
            lease_s=settings.lease_s,
        )

    def _make_workshop(self) -> None:
        settings = self.settings
        self._backlog = Backlog(self.engine.capacity)
        self._workshop = Workshop(
            runs=Runs(self._patient, settings.namespace, settings.retention_s),
            claims=self._claims,
            backlog=self._backlog,
            engine=self.engine,
            encoders=ThreadPoolExecutor(_ENCODERS, thread_name_prefix="encode"),
            checkpoint_s=settings.bulk_checkpoint_s,
            patience_s=settings.storage_patience_s,
            max_deliveries=settings.max_deliveries,
        )
        self._caretaker = Caretaker(self._workshop.runs, settings.bulk_still_s)

    def _make_intake(self) -> None:
        settings = self.settings
        self.intake = Intake(
            self._claims,
            Beginner(
                self._claims, self._records, self._dead, self.engine.info, settings.max_deliveries
            ),
            self.engine.capacity,
            self._backlog,
            Originals(self._store, AllowList.parse(settings.callback_allow)),
            max_deliveries=settings.max_deliveries,
            max_in_hand=settings.post_threads,
            usual_steps=self.engine.info.default_num_inference_steps,
            linger_s=settings.linger_s,
        )

    def _make_performer(self) -> None:
        patience_s = self.settings.storage_patience_s
        self._health = Health(self.engine, self._store, self.settings.quarantine_s)
        self.jobs = Performer(
            self.intake,
            self._records,
            self._claims,
            Finisher(self._store, self._records, self.engine, self.name, patience_s),
            Retries(self._records, self._claims, self._dead, self.settings.max_retries),
            self._health,
        )

    def _make_device_loop(self) -> None:
        self._reporter = ProgressReporter(self._records)
        self._runner = Runner(
            self.engine,
            self.intake.next_batch,
            self._report,
            self.settings.poll_s,
            self._health,
            self._give_up,
        )
        self._watchdog = Watchdog(
            self._runner.beats, self._leave_hung_devices, self.settings.watchdog_s
        )

    def _make_keeper(self) -> None:
        settings = self.settings
        impatient = Records(self._once, settings.namespace, settings.retention_s)
        self._keeper = Keeper(self._claims, impatient, settings.lease_s, self._abandon_all)

    def take_work(self) -> None:
        """Begin to claim. Again after a reconnect: nothing happens."""
        if not self._running:
            self._keeper.start()
            self._reporter.start()
            self._runner.start()
            self._watchdog.start()
            self._caretaker.start()
            self._running = True
            if self.settings.preemption_url is not None:
                watch(self.settings.preemption_url, self._leave_preempted_host)

    def make_shard(self, asked: object, tag: str) -> None:
        """See a claimed shard of a dataset to its end, in a pool thread. Raises LeaseLost."""
        make_shard(self._workshop, unpack_shard(asked), tag)

    def stop_taking(self) -> None:
        """Take no further batch. Asked a second time, hand everything back and quit."""
        if self._asked_to_stop:
            self.quit()
        self._asked_to_stop = True
        self._leave_anyway_after(self.settings.drain_s + _DRAIN_GRACE_S)
        if self._running:
            self.intake.close()
            self._runner.stop()

    def drain(self) -> None:
        """Hand back at once what no device has seen; finish the rest within `drain_s`, or hand it
        back too. Every way out of a worker comes through here; a second time nothing happens."""
        if not self._running:
            return
        self._running = False
        if not self._asked_to_stop:
            self._leave_anyway_after(self.settings.drain_s + _DRAIN_GRACE_S)
        deadline = time.monotonic() + self.settings.drain_s
        self.intake.close()
        self._runner.stop()
        handed_back = self.jobs.hand_back(self.intake.put_down())
        self._backlog.close(_DRAINING)
        begun = [each.tag for each in self.intake.unfinished()] + self._backlog.tags()
        self._runner.join(self.settings.drain_s)
        self._backlog.abandon(_DRAINING)
        while any(self._claims.holds(tag) for tag in begun) and time.monotonic() < deadline:
            time.sleep(0.02)  # until Celery has stored the result and acknowledged
        handed_back += self.jobs.hand_back(self.intake.unfinished())
        self._watchdog.stop()
        self._caretaker.stop()
        self._keeper.stop()
        handed_back += self._claims.leave()
        log.info("drained; handed back: %d", handed_back)
        self._reporter.stop()
        self._delivery.stop()

    def quit(self) -> None:
        """Hand everything back now and end the process. Redis has a moment for it."""
        self._leave_anyway_after(_QUIT_S)
        try:
            self.intake.close()
            self.intake.put_down()
            handed_back = self.jobs.hand_back(self.intake.unfinished()) + self._claims.leave()
            log.warning("quitting; handed back: %d", handed_back)
        finally:
            os._exit(Exit.HURRIED)

    def _leave_preempted_host(self) -> None:
        log.warning("the platform is about to take this host away")
        self.quit()

    def _give_up(self, batch: Sequence[Slot], waiting: Sequence[Slot]) -> None:
        """Sick devices had `batch`. That counts as a delivery, like a worker that died, so that a
        prompt which does it to them is bounded. What only waited goes back uncounted."""
        hurt = attempts_in(batch)
        self._put_down_shards(batch)
        others = dict.fromkeys([*attempts_in(waiting), *self.intake.put_down()])
        self.jobs.hand_back([each for each in others if each not in hurt])
        self.jobs.hand_back(hurt, counted=True)

    def _leave_hung_devices(self) -> None:
        """As `_give_up`, and end the process: nothing else frees a hung device."""
        self._leave_anyway_after(_DRAIN_GRACE_S, Exit.HUNG)
        self.intake.close()
        self._runner.stop()
        self.intake.put_down()
        hung = attempts_in(self._runner.on_devices())
        self._put_down_shards(self._runner.on_devices())
        self.jobs.hand_back([each for each in self.intake.unfinished() if each not in hung])
        self.jobs.hand_back(hung, counted=True)
        self._claims.leave()
        logging.shutdown()
        os._exit(Exit.HUNG)

    def _abandon_all(self) -> None:
        """The lease ran out: every job begun here is another worker's now. Devices drop it."""
        for attempt in self.intake.unfinished():
            attempt.abandon(LeaseLost(f"job {attempt.job_id}: the lease ran out"))
        self._backlog.abandon(LeaseLost("the lease ran out"))

    def _put_down_shards(self, batch: Sequence[Slot]) -> None:
        """All of them; for those with a row in `batch` it counts as a delivery."""
        self._claims.give_up(*self._backlog.tags_in(batch))
        self._backlog.abandon(LeaseLost("the devices are sick"))

    def _leave_anyway_after(self, seconds: float, code: Exit = Exit.HURRIED) -> None:
        """Redis may be away, or a pool thread may hang: the lease does the rest."""
        timer = threading.Timer(seconds, os._exit, [code])
        timer.daemon = True
        timer.start()

    def _report(self, batch: Sequence[Slot], step: int) -> None:
        self._reporter.report(batch, step)
        self.intake.report(batch, step)


def _describe(engine: Engine) -> str:
    info: ModelInfo = engine.info
    shapes = ", ".join(str(shape) for shape in info.shapes)
    return f"{info.name}, {engine.capacity} pictures a batch, shapes {shapes}"

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
from typing import Final

from shared import broker
from shared.broker import UNTIL_IT_IS_BACK
from shared.catalogue import Catalogue
from shared.errors import ImagefleetError, JobCancelled, JobFailed, LeaseLost
from shared.events import callback
from shared.jobs import CallbackEvent, JobResult, State
from shared.queues import queue_name
from shared.records import Records
from shared.storage import open_store
from worker.attempts import Attempt, offer_of
from worker.claims import Claims, QueueGroup
from worker.deadletters import DeadLetters
from worker.delivery import start_delivery
from worker.engine.base import Engine, ModelInfo
from worker.engine.load import load_engine
from worker.exits import Exit
from worker.finish import Finisher
from worker.intake import Intake
from worker.keeper import Keeper
from worker.progress import ProgressReporter
from worker.runner import Runner
from worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_DRAIN_GRACE_S: Final = 10.0


class Host:
    """Everything a worker process owns. Made without side effects; `start` makes them."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.name = f"{platform.node()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._running = False
        self._asked_to_stop = False

    def start(self) -> None:
        """Check Redis and storage, load and compile the model, announce it.

        Raises:
            ImagefleetError: which part is wrong and what to do.
        """
        settings, started = self.settings, time.monotonic()
        url = settings.redis_url.get_secret_value()
        once = broker.connect(url, retries=0)
        broker.check(once, url)
        patient = broker.connect(url, retries=UNTIL_IT_IS_BACK)
        store = open_store(settings.storage_url)
        store.check()
        self._delivery = start_delivery(patient, settings)
        self.engine = load_engine(
            settings.model,
            shapes=settings.declared_shapes(),
            per_device_batch=settings.per_device_batch,
            devices=settings.devices,
            dtype=settings.dtype,
            cache_dir=settings.cache_dir,
            max_num_inference_steps=settings.max_num_inference_steps,
        )
        self.engine.warm()
        self._records = Records(patient, settings.namespace, settings.retention_s)
        self._claims = Claims(
            once=once,
            patient=patient,
            namespace=settings.namespace,
            worker=self.name,
            lease_s=settings.lease_s,
        )
        dead = DeadLetters(patient, settings.namespace)
        self.intake = Intake(
            self._claims,
            self._records,
            dead,
            self.engine,
            max_deliveries=settings.max_deliveries,
            max_in_hand=settings.post_threads,
        )
        self._finisher = Finisher(
            store, self._records, self.engine, self.name, settings.storage_patience_s
        )
        self._reporter = ProgressReporter(self._records)
        self._runner = Runner(
            self.engine, self.intake.next_batch, self._reporter.report, settings.poll_s
        )
        self._keeper = Keeper(self._claims, settings.lease_s)
        Catalogue(patient, settings.namespace).announce(offer_of(self.engine.info))
        log.info("ready after %.1f s: %s", time.monotonic() - started, _describe(self.engine))

    def take_work(self) -> None:
        """Begin to claim. Again after a reconnect: nothing happens."""
        if not self._running:
            self._keeper.start()
            self._reporter.start()
            self._runner.start()
            self._running = True

    def groups(self, queues: Sequence[str] | None) -> list[QueueGroup]:
        """`queues`, or all of this model's, sorted by compile key. A name we do not know is a group
        of its own."""
        info = self.engine.info
        sizes = [(shape.height, shape.width) for shape in info.shapes]
        keys = {
            queue_name(self.settings.namespace, model, *size): str(shape)
            for model in (None, info.name)
            for size, shape in [
                ((None, None), info.shapes[0]),
                *zip(sizes, info.shapes, strict=True),
            ]
        }
        grouped: dict[str, list[str]] = {}
        for queue in keys if queues is None else queues:
            grouped.setdefault(keys.get(queue, queue), []).append(queue)
        return [QueueGroup(name=name, queues=tuple(found)) for name, found in grouped.items()]

    def perform(self, job_id: str, tag: str) -> JobResult:
        """See a claimed job to its end: what the Celery task does, in a pool thread.

        Raises:
            ImagefleetError: how it ended, if not well; recorded already.
        """
        found = self.intake.outcome(tag)
        try:
            if found is None:
                return self._ended_before(job_id)
            if isinstance(found, ImagefleetError):
                raise found
            return self._finish(found)
        except ImagefleetError:
            raise
        except Exception as error:  # Celery would drop it, and its claim would be held for ever
            log.exception("job %s goes back to the queue", job_id)
            self._claims.hand_back(tag)
            raise LeaseLost(f"job {job_id} was handed back") from error
        finally:
            self.intake.forget(tag)

    def withdraw(self, job_id: str, tag: str) -> None:
        """Celery revoked the job, or it expired, before its task ran here."""
        found = self.intake.forget(tag)
        if isinstance(found, Attempt):
            found.abandon(JobCancelled(f"job {job_id} was revoked"))
        [status] = self._records.read([job_id])
        if status is not None:
            event = callback(CallbackEvent.CANCELLED, job_id, status.request)
            leave = [State.QUEUED, State.RUNNING]
            self._records.cancel(job_id, "", event, leave=leave)

    def stop_taking(self) -> None:
        """Take no further batch. Asked a second time, hand everything back and quit."""
        if self._asked_to_stop:
            self.quit()
        self._asked_to_stop = True
        self._leave_anyway_after(self.settings.drain_s + _DRAIN_GRACE_S)
        if self._running:
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
        self._runner.stop()
        handed_back = self._hand_back(self.intake.close())
        begun = self.intake.unfinished()
        self._runner.join(self.settings.drain_s)
        while any(self._claims.holds(each.tag) for each in begun) and time.monotonic() < deadline:
            time.sleep(0.02)  # until Celery has stored the result and acknowledged
        handed_back += self._hand_back(self.intake.unfinished())
        self._keeper.stop()
        handed_back += self._claims.leave()
        log.info("drained: %d jobs handed back", handed_back)
        self._reporter.stop()
        self._delivery.stop()

    def quit(self) -> None:
        """Hand everything back now and end the process."""
        try:
            log.warning("quitting: %d jobs handed back", self._claims.leave())
        finally:
            os._exit(Exit.HURRIED)

    def _leave_anyway_after(self, seconds: float) -> None:
        """Redis may be away, or a pool thread may hang: the lease does the rest."""
        timer = threading.Timer(seconds, os._exit, [Exit.HURRIED])
        timer.daemon = True
        timer.start()

    def _hand_back(self, attempts: Sequence[Attempt]) -> int:
        """Record, message, and then whoever waits: Celery acknowledges what was given up, and must
        find the claim gone. The oldest last: it ends nearest the head of its queue."""
        for attempt in reversed(attempts):
            self._records.requeue(attempt.job_id, attempt.token)
            self._claims.hand_back(attempt.tag)
            attempt.abandon(LeaseLost(f"job {attempt.job_id} was handed back"))
        return len(attempts)

    def _finish(self, attempt: Attempt) -> JobResult:
        submitted_at = self._records.get(attempt.job_id).submitted_at
        try:
            return self._finisher.finish(attempt, submitted_at)
        except LeaseLost:
            raise
        except JobCancelled:
            self._finisher.cancel(attempt)
            raise
        except ImagefleetError as error:
            self._finisher.fail(attempt, error)
            raise
        except Exception as error:
            log.exception("job %s failed in a way nobody thought of", attempt.job_id)
            failure = ImagefleetError(f"{type(error).__name__}: {error}")
            self._finisher.fail(attempt, failure)
            raise failure from error

    def _ended_before(self, job_id: str) -> JobResult:
        status = self._records.get(job_id)
        if status.result is not None:
            return status.result
        if status.state is State.CANCELLED:
            raise JobCancelled(f"job {job_id} was cancelled")
        if status.error is not None:
            raise JobFailed(status.error.message, status.error.code)
        raise LeaseLost(f"job {job_id} is somebody else's")


def _describe(engine: Engine) -> str:
    info: ModelInfo = engine.info
    shapes = ", ".join(str(shape) for shape in info.shapes)
    return f"{info.name}, {engine.capacity} pictures a batch, shapes {shapes}"

"""The worker of a fake fleet: it runs one job or shard at a time, in the thread that calls it.

Input: queued messages. Output: records, images, metadata and callbacks, all made by the code of a
real worker. Celery, the device thread, heartbeats and retries are left out, and a fake engine
generates the images. This module does not use the client.
"""

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagefleet.shared.errors import (
    DeviceError,
    ImagefleetError,
    InputUnavailable,
    InvalidInput,
    InvalidRequest,
    JobCancelled,
    StorageDenied,
    StorageUnavailable,
    TooManyDeliveries,
    WorkerError,
)
from imagefleet.shared.jobs.celery_message import task_arguments
from imagefleet.shared.jobs.dead_letters import DeadLetters
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.offers import OfferRegistry
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import announced_url, open_store
from imagefleet.testing.fake_shards import FakeShards
from imagefleet.worker.devices.health_check import HealthCheck
from imagefleet.worker.devices.slots import slots_of
from imagefleet.worker.engine.fake.fake_engine import DIE, FakeEngine
from imagefleet.worker.jobs.attempt import Attempt, offer_of
from imagefleet.worker.jobs.execute import JobExecutor
from imagefleet.worker.jobs.finish import JobFinisher
from imagefleet.worker.jobs.in_flight import InFlight
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.jobs.progress import ProgressReporter
from imagefleet.worker.jobs.refuse import Refuser
from imagefleet.worker.jobs.retry_policy import RetryPolicy
from imagefleet.worker.jobs.start_attempt import JobStarter
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.queues.claim_types import Claimed
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.startup.served_queues import queue_groups

if TYPE_CHECKING:
    from redis import Redis

_NAME: Final = "fake-worker"
_LEASE_S: Final = 24 * 3600.0
"""Nothing renews the lease, so it must outlast every test."""
_MAX_DELIVERIES: Final = 4
_NO_RETRIES: Final = 0
"""A retry would wait for seconds, so every failure counts as the last one."""
_FAILURES: Final = {
    error.code: error
    for error in (
        DeviceError,
        InputUnavailable,
        InvalidInput,
        StorageDenied,
        StorageUnavailable,
        TooManyDeliveries,
        WorkerError,
    )
}
"""The errors with which workers end jobs that were admitted, by their codes."""


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A message as `JobStarter` reads it."""

    claimed: Claimed
    job_request: JobRequest | ImagefleetError
    origin: MessageOrigin


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A request as `JobStarter` reads it. Celery's own may have been revoked."""

    id: str
    message: _Message

    def revoked(self) -> bool:
        return False


class FakeWorker:
    """The worker announces its engine at once. One thread at a time may call `run_next`."""

    def __init__(self, redis: "Redis", settings: Settings, engine: FakeEngine) -> None:
        """Store images where `settings.storage_url` says."""
        namespace = settings.namespace
        store = open_store(settings.storage_url)
        self._engine = engine
        self._records = JobRecords(redis, namespace, settings.retention_s)
        self._claims = Claims(
            no_retry_client=redis,
            retrying_client=redis,
            namespace=namespace,
            worker=_NAME,
            lease_s=_LEASE_S,
        )
        dead_letters = DeadLetters(redis, namespace)
        self._refuser = Refuser(self._claims, self._records, dead_letters)
        self._starter = JobStarter(
            self._claims, self._records, self._refuser, engine.info, _MAX_DELIVERIES
        )
        self._in_flight = InFlight()
        self._executor = JobExecutor(
            self._in_flight,
            self._records,
            self._claims,
            JobFinisher(store, self._records, engine, _NAME, retry_time_s=0.0),
            RetryPolicy(self._records, self._claims, dead_letters, _NO_RETRIES),
            HealthCheck(engine, store, quarantine_s=0.0),
        )
        self._progress = ProgressReporter(self._records)
        self._input_images = InputImages(store, AllowList(), latents=engine.info.latents)
        groups = queue_groups(None, engine.info, namespace)
        self._groups = [group for group in groups if not group.bulk]
        self._shards = FakeShards(
            redis,
            settings,
            engine,
            self._claims,
            [group for group in groups if group.bulk],
            self._input_images.fetch,
        )
        self._failures: dict[str, type[ImagefleetError]] = {DIE: TooManyDeliveries}
        offer = offer_of(engine.info, storage_url=announced_url(settings.storage_url, store))
        OfferRegistry(redis, namespace).announce(offer)
        self._claims.lease.acquire()
        self._stopping = threading.Event()

    def fail(self, prompt_part: str, code: str) -> None:
        """Let jobs fail with the error `code` whose prompt contains `prompt_part`.

        Raises:
            InvalidRequest: workers end no admitted job with this code.
        """
        if code not in _FAILURES:
            raise InvalidRequest("code", code, f"must be one of {', '.join(_FAILURES)}")
        self._failures = {**self._failures, prompt_part: _FAILURES[code]}  # others may iterate

    def stop(self) -> None:
        """Cancel the job that another thread runs, after its current step."""
        self._stopping.set()
        self._shards.stop()
        self._engine.release()

    def make_next_shard(self) -> bool:
        """Make the queued shard of a dataset whose turn it is. Return False if none is queued."""
        return self._shards.make_next(self._check_prompt)

    def run_next(self) -> str | None:
        """Run the queued job whose turn it is, to its end. Return its id, or None without one.

        Raises:
            WorkerError: the job could not be ended, and is queued again.
        """
        while claimed := self._claims.claim(self._groups, 1, max_messages=1):
            job_id = self._run(claimed[0])
            if job_id is not None:
                return job_id
        return None

    def _run(self, claimed: Claimed) -> str | None:
        """Run the job of a message. Return its id, or None if it has ended before."""
        arguments = task_arguments(claimed.message)
        job_id: str = json.loads(claimed.message)["headers"]["id"]
        origin = MessageOrigin(job_id=job_id, arguments=arguments, recorded=True, request_sha1="")
        message = _Message(claimed=claimed, job_request=origin.read_request(), origin=origin)
        [outcome] = self._starter.start([_Request(id=job_id, message=message)])
        if outcome is not None:
            self._in_flight.add(claimed.tag, outcome)
            if isinstance(outcome, Attempt):
                self._generate(outcome)
            with suppress(ImagefleetError):  # the record says how the job ended
                self._executor.execute(job_id, claimed.tag)
            if not self._claims.holds(claimed.tag):
                raise WorkerError(f"job {job_id} cannot be ended, and is queued again; see the log")
        self._refuser.acknowledge(claimed, job_id)
        return None if outcome is None else job_id

    def _generate(self, attempt: Attempt) -> None:
        """Deliver the images of an attempt, or abandon it."""
        started = time.monotonic()
        try:
            self._check_failures(attempt.request)
            attempt.start_from(*self._input_images.fetch(attempt.request, attempt.shape))
            self._denoise(attempt)
        except ImagefleetError as error:
            attempt.abandon(error)
        except Exception as error:  # the executor would wait for the images for ever
            attempt.abandon(WorkerError(f"{type(error).__name__}: {error}"))
        attempt.device_s = time.monotonic() - started

    def _check_failures(self, request: JobRequest) -> None:
        self._check_prompt(request.prompt)
        for address in (getattr(request, name) for name in INPUT_FIELDS):
            if address is not None and address.startswith(("http://", "https://")):
                raise InputUnavailable("a fake fleet fetches nothing from the network")

    def _check_prompt(self, prompt: str) -> None:
        for part, error in self._failures.items():
            if part in prompt:
                raise error(f"the fake fleet was told to fail prompts with {part!r}")

    def _denoise(self, attempt: Attempt) -> None:
        batch = slots_of(attempt)
        running = self._engine.start_batch(attempt.specs, attempt.shape)
        self._progress.record(dict.fromkeys(batch, 0))
        for step in running:
            if attempt.wants_preview:
                small = running.previews()()[0]
                attempt.fetch_preview = lambda small=small: small
            self._progress.record(dict.fromkeys(batch, step))
            if self._stopping.is_set():
                attempt.abandon(JobCancelled("the fake fleet was closed"))
            if attempt.ended:
                return
        for slot, image in zip(batch, running.outputs(), strict=True):
            attempt.deliver(slot.index, image)

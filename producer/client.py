"""The Python API: submit prompts, wait for images.

    from imagefleet import Client

    client = Client()
    job = client.submit("a small red circle on the left on a blue background", seed=7)
    print(job.result(timeout=60).images[0].url)

Waiting polls the job records. It opens no channel per job, so waiting for ten thousand jobs costs
one round trip per poll. This module does not know workers, Celery or JAX.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, overload

from imagefleet.producer.connection import Connection
from imagefleet.producer.input_images import InputImageUploader
from imagefleet.producer.job import Job, Polling, result_or_error
from imagefleet.producer.misspelled_variables import misspelled_variable_warnings
from imagefleet.producer.outages import OutageTolerance
from imagefleet.producer.parameters import JobParameters
from imagefleet.producer.submission import EntryParser
from imagefleet.shared.errors import ImagefleetError, InvalidRequest, UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.model import TERMINAL, JobResult, State, check_job_id
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.status import JobStatus, unknown_job_error
from imagefleet.shared.settings import Settings

if TYPE_CHECKING:  # few producers make datasets; the others do not pay for this import
    from pathlib import Path

    from imagefleet.producer.bulk.readers import Rows
    from imagefleet.producer.bulk.run import BulkRun
    from imagefleet.shared.jobs.dead_letters import DeadLetters
    from imagefleet.shared.jobs.tenants import Tenants
    from imagefleet.shared.webhooks.outbox import Outbox

log = logging.getLogger(__name__)

CHUNK: Final = 500
"""Jobs per round trip: 28,000 jobs/s, against 1,600 jobs/s one by one."""


class Client:
    """The client submits jobs to the fleet and waits for them. Threads may share it."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        tenant: str | None = None,
        storage_url: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Take settings from the arguments, else from `IMAGEFLEET_…`. Connect at the first call.

        Args:
            tenant: the tenant of submitted jobs that do not name one.
            storage_url: the fleet's store as this host reaches it. Default: as the workers do.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        self.settings = settings or Settings.load(
            redis_url=redis_url, namespace=namespace, storage_url=storage_url
        )
        for warning in misspelled_variable_warnings(os.environ):
            log.warning("%s", warning)
        self._defaults = {"tenant": tenant}
        self.connection: Final = Connection(self.settings)
        self._records = self.connection.records
        self.tenants: Final[Tenants] = self.connection.tenants
        self.dead_letters: Final[DeadLetters] = self.connection.dead_letters
        """Messages that the fleet gave up."""
        self.outbox: Final[Outbox] = self.connection.outbox
        """Callbacks that wait to be delivered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, prompt: str, *, id: str | None = None, **parameters: Unpack[JobParameters]
    ) -> Job:
        """Submit one job. Once this returns, the job will end in exactly one terminal state.

        Args:
            prompt: the text to generate an image from.
            id: your own id; the same id with the same parameters is the same job.
            parameters: the other parameters of the job, named as in diffusers. `image` and
                `mask_image` may be files or images of this process, which are uploaded first.

        Raises:
            InvalidRequest: a parameter is wrong; the error names it, its value and the limit.
            BrokerUnavailable: nothing was accepted, or Redis' answer was lost and the outcome is
                unknown. Repeating the call with the same `id` is safe in both cases.
            QueueFull, TenantLimit: the limit of waiting jobs is reached; nothing was accepted.
            ConfigurationError, StorageDenied, StorageUnavailable: an image cannot be uploaded.
        """
        entry = {"prompt": prompt, "id": id, **parameters}
        return next(self.submit_chunks([entry], {}, several=False))[0]

    def submit_many(
        self, prompts: Iterable[str | Mapping[str, object]], **parameters: Unpack[JobParameters]
    ) -> list[Job]:
        """Submit many jobs: prompts, or mappings of parameters. `parameters` apply to all of them.

        Raises the errors of `submit`; an InvalidRequest names the entry, counted from 0. Chunks of
        500 jobs are accepted, each as a whole or not at all. When one raises, those before it stay
        accepted. With your own ids, you can repeat the call: no job is accepted twice.
        """
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise InvalidRequest("prompts", prompts, "must be several; `submit` takes one")
        return list(chain.from_iterable(self.submit_chunks(prompts, parameters, several=True)))

    def submit_chunks(
        self, entries: Iterable[object], common: Mapping[str, Any], *, several: bool
    ) -> Iterator[list[Job]]:
        """Yield the jobs of each 500 entries once they are accepted; see `submit_many`."""
        self.connection.warn_about_server()
        uploader = InputImageUploader(self.connection.store)
        parser = EntryParser({**self._defaults, **common}, uploader, several=several)
        numbered = enumerate(entries)
        while chunk := list(islice(numbered, CHUNK)):
            offers = self.connection.offers()
            requests = parser.parse(chunk, offers)
            with self.connection.translate_errors():
                self._records.submit(requests, by_compile_key=bool(offers))
            yield [Job(id=job_id, client=self) for job_id, _ in requests]

    def get(self, job_id: str) -> Job:
        """Return the handle of any producer's job. Raises UnknownJob, UnreadableRecord."""
        (job := Job(id=check_job_id(job_id), client=self)).status()
        return job

    def statuses(self, job_ids: Iterable[str]) -> list[JobStatus]:
        """Return the records of many jobs in one round trip, without those that do not exist.

        A record that cannot be read is left out too, and logged; see `lookup`.
        """
        answers = self.lookup(job_ids)
        for answer in answers:
            if isinstance(answer, UnreadableRecord):
                log.warning("%s", answer)
        return [answer for answer in answers if isinstance(answer, JobStatus)]

    def lookup(self, job_ids: Iterable[str]) -> "list[JobStatus | UnknownJob | UnreadableRecord]":
        """Return for each job its record, or the error that says why there is none.

        One round trip. The error of one job does not affect the others.
        """
        ids = list(job_ids)
        answers = self.connection.read_statuses(ids)
        return [
            unknown_job_error(job_id) if answer is None else answer
            for job_id, answer in zip(ids, answers, strict=True)
        ]

    def as_completed(self, jobs: Iterable[Job], *, timeout: float | None = None) -> Iterator[Job]:
        """Yield each job as it ends, in whichever state.

        Log a warning if no worker is alive. Outages of Redis after its first answer are waited for.

        Raises:
            ResultTimeout: `timeout` seconds have passed, and not all jobs have ended.
            BrokerUnavailable: Redis does not answer the first time, or not at the timeout.
        """
        waiting = {job.id: job for job in jobs}
        yield from self.await_jobs(waiting, Polling(waiting, timeout))

    @overload
    def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: Literal[False] = False,
        **parameters: Unpack[JobParameters],
    ) -> Iterator[JobResult]: ...

    @overload
    def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: bool,
        **parameters: Unpack[JobParameters],
    ) -> "Iterator[JobResult | ImagefleetError]": ...

    def map(
        self,
        prompts: Iterable[str | Mapping[str, object]],
        *,
        timeout: float | None = None,
        return_exceptions: bool = False,
        **parameters: Unpack[JobParameters],
    ) -> "Iterator[JobResult] | Iterator[JobResult | ImagefleetError]":
        """Submit the prompts and yield their results in order.

        Args:
            timeout: seconds to wait for each result.
            return_exceptions: yield the error of a job in the place of its result, not raise it.
        """
        outages = OutageTolerance()
        wait = result_or_error if return_exceptions else Job.await_result
        yield from (wait(job, timeout, outages) for job in self.submit_many(prompts, **parameters))

    def cancel(self, job_id: str) -> State:
        """Cancel a job, a running one between two steps, and return its state now.

        Raises UnknownJob, UnreadableRecord.
        """
        return self.connection.cancel(job_id)

    def resend(self, job_id: str) -> bool:
        """Queue the message of a queued job again if it has none, as after `celery purge`.

        Return whether it was. `submit` with the same id and parameters does so after a minute.
        Raises UnknownJob, UnreadableRecord.
        """
        with self.connection.translate_errors():
            by_compile_key = bool(self.connection.offers())
            [resent] = self._records.resend([check_job_id(job_id)], by_compile_key=by_compile_key)
        return resent

    def bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "BulkRun":
        """Generate a dataset in `destination`, with the images of every row.

        Return once the run has started; it needs this process no longer. The same call resumes it.

        Args:
            rows: a .txt, .csv, .jsonl or .parquet file, or an iterable of prompts or mappings.
            destination: s3://bucket/prefix, file:///folder, or a path.
            options: options of `producer.bulk.start_run.start`, and parameters of all rows, with
                diffusers' names.

        Raises:
            InvalidRequest: the input, an option or a parameter of all rows is wrong.
            PlanConflict: the destination holds another dataset.
            StorageDenied, StorageUnavailable: the destination cannot be written.
        """
        from imagefleet.producer.bulk.start_run import start

        return start(self.connection, self.submit, rows, destination, **options)

    def find_bulk(self, name: str) -> "BulkRun":
        """Return the bulk run of a destination or of a run id. Raises UnknownRun."""
        from imagefleet.producer.bulk.start_run import find

        return find(self.connection, self.submit, name)

    def offers(self) -> dict[str, Offer]:
        """Return what the workers offer, by model. Empty before the first worker was ready."""
        return self.connection.offers()

    def workers(self) -> list[str]:
        """Return the names of the living workers. A killed one counts until its lease expires."""
        return self.connection.workers()

    def check(self) -> None:
        """Raise BrokerUnavailable unless Redis answers."""
        self.connection.check()

    def close(self) -> None:
        """Close the connections to Redis."""
        self.connection.close()

    def await_jobs(self, waiting: dict[str, Job], polls: Polling) -> Iterator[Job]:
        """Yield the jobs of `waiting` (by id) as they end, as `as_completed` does."""
        outages = polls.outages
        for interval in polls.intervals():
            if ended := outages.read(lambda: self.pop_ended(waiting, warn=not outages.answered)):
                yield from ended
            if waiting:
                time.sleep(interval)

    def pop_ended(self, waiting: dict[str, Job], *, warn: bool = False) -> list[Job]:
        """Remove from `waiting` (by id) the jobs that have ended, and return them. One round trip.

        A job without a record, or with an unreadable one, counts as ended: its status says why.

        Args:
            warn: whether to log a warning if jobs are left and no worker is alive.
        """
        ids = list(waiting)
        with self.connection.translate_errors():
            states = self._records.states(ids)
        ended = [id for id, state in zip(ids, states, strict=True) if state in (None, *TERMINAL)]
        if warn and len(ended) < len(ids):
            self.connection.warn_if_no_worker()
        return [waiting.pop(job_id) for job_id in ended]

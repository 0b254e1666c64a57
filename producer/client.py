"""The Python API: submit prompts, wait for images.

    from imagefleet import Client

    client = Client()
    job = client.submit("a small red circle on the left on a blue background", seed=7)
    print(job.result(timeout=60).images[0].url)

Waiting polls the job records. It opens no channel per job, so waiting for ten thousand jobs costs
one round trip per poll. This module does not know workers, Celery or JAX.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from imagefleet.producer.connection import Connection
from imagefleet.producer.job import Job, poll_intervals, unknown_job
from imagefleet.shared.errors import InvalidRequest, UnknownJob, UnreadableRecord
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.callback_events import build_callback
from imagefleet.shared.jobs.model import (
    TERMINAL,
    CallbackEvent,
    JobResult,
    State,
    check_job_id,
    new_job_id,
)
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.status import JobStatus
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
        settings: Settings | None = None,
    ) -> None:
        """Take settings from the arguments, else from `IMAGEFLEET_…`. Connect at the first call.

        Args:
            tenant: the tenant of submitted jobs that do not name one.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        self.settings = settings or Settings.load(redis_url=redis_url, namespace=namespace)
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

    def submit(self, prompt: str, *, id: str | None = None, **parameters: Any) -> Job:
        """Submit one job. Once this returns, the job will end in exactly one terminal state.

        Args:
            prompt: the text to generate an image from.
            id: your own id; the same id with the same parameters is the same job.
            parameters: fields of `shared.jobs.model.JobRequest`, named as in diffusers.

        Raises:
            InvalidRequest: a parameter is wrong; the error names it, its value and the limit.
            BrokerUnavailable: nothing was accepted, or Redis' answer was lost and the outcome is
                unknown. Repeating the call with the same `id` is safe in both cases.
            QueueFull, TenantLimit: the limit of waiting jobs is reached; nothing was accepted.
        """
        [job] = self.submit_many([{"prompt": prompt, "id": id, **parameters}])
        return job

    def submit_many(
        self, prompts: Iterable[str | Mapping[str, Any]], **parameters: Any
    ) -> list[Job]:
        """Submit many jobs: prompts, or mappings of parameters. `parameters` apply to all of them.

        Raises the errors of `submit`. Jobs are accepted in chunks of 500, each chunk as a whole in
        one step. When a chunk raises, the chunks before it stay accepted. When an id already exists
        with other parameters, the other jobs of its chunk are accepted as well. Give jobs your own
        ids to repeat the same call safely: a job that was accepted before is not accepted twice.
        """
        if isinstance(prompts, str | Mapping):
            raise InvalidRequest("prompts", prompts, "must be several; `submit` takes one")
        jobs: list[Job] = []
        entries = iter(prompts)
        while chunk := list(islice(entries, CHUNK)):
            common = {**self._defaults, **parameters}
            jobs += self._submit_chunk([_parameters(entry, common) for entry in chunk])
        return jobs

    def get(self, job_id: str) -> Job:
        """Return the handle of a job that any producer submitted. Raises UnknownJob,
        UnreadableRecord."""
        job = Job(id=check_job_id(job_id), client=self)
        job.status()
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
        with self.connection.translate_errors():
            answers = self._records.read_each(ids)
        return [
            unknown_job(job_id) if answer is None else answer
            for job_id, answer in zip(ids, answers, strict=True)
        ]

    def as_completed(self, jobs: Iterable[Job], *, timeout: float | None = None) -> Iterator[Job]:
        """Yield each job as it ends, in whichever state. Raises ResultTimeout after `timeout` s."""
        waiting = {job.id: job for job in jobs}
        for interval in poll_intervals(waiting, timeout):
            yield from self.pop_ended(waiting)
            if waiting:
                time.sleep(interval)

    def map(
        self,
        prompts: Iterable[str | Mapping[str, Any]],
        *,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Iterator[JobResult]:
        """Submit the prompts and yield their results in order. Raises at the first failed job."""
        for job in self.submit_many(prompts, **parameters):
            yield job.result(timeout=timeout)

    def cancel(self, job_id: str) -> State:
        """Cancel a job: a queued one at once, a running one between two steps.

        Return the state it is in now; a job that has ended keeps its state. Raises UnknownJob,
        UnreadableRecord.
        """
        with self.connection.translate_errors():
            request = self._records.get(check_job_id(job_id)).request
            event = build_callback(CallbackEvent.CANCELLED, job_id, request)
            while True:
                if self._records.cancel(job_id, "", event).happened:
                    return State.CANCELLED
                state = self._records.request_cancel(job_id)
                if state is not State.QUEUED:  # QUEUED: it was requeued just now, so repeat
                    return state

    def resend(self, job_id: str) -> bool:
        """Queue the message of a queued job again if it has none, as after `celery purge`.

        Return whether it was queued again. `submit` with the same id and parameters does the same
        for a job that is queued for a minute. Raises UnknownJob, UnreadableRecord.
        """
        with self.connection.translate_errors():
            by_compile_key = bool(self.connection.offers())
            [resent] = self._records.resend([check_job_id(job_id)], by_compile_key=by_compile_key)
        return resent

    def bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "BulkRun":
        """Generate a dataset in `destination`, with the images of every row.

        Return once the run has started; the run does not need this process any longer. The same
        call again resumes the run.

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
        from imagefleet.producer.bulk.regenerate import regenerate
        from imagefleet.producer.bulk.start_run import start

        return start(
            self.connection, partial(regenerate, self.submit), rows, destination, **options
        )

    def find_bulk(self, name: str) -> "BulkRun":
        """Return the bulk run of a destination or of a run id. Raises UnknownRun."""
        from imagefleet.producer.bulk.regenerate import regenerate
        from imagefleet.producer.bulk.start_run import find

        return find(self.connection, partial(regenerate, self.submit), name)

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

    def pop_ended(self, waiting: dict[str, Job]) -> Iterator[Job]:
        """Remove from `waiting` (by id) the jobs that have ended, and yield them. One round trip.

        A job without a record, or with an unreadable one, counts as ended: its status says why.
        """
        ids = list(waiting)
        with self.connection.translate_errors():
            states = self._records.states(ids)
        for job_id, state in zip(ids, states, strict=True):
            if state is None or state in TERMINAL:
                yield waiting.pop(job_id)

    def _submit_chunk(self, entries: list[dict[str, Any]]) -> list[Job]:
        with self.connection.translate_errors():
            self.connection.warn_about_server()
            offers = self.connection.offers()
            jobs = []
            for entry in entries:
                job_id = entry.pop("id", None)
                request = JobRequest.parse(entry)
                admit(request, offers)
                jobs.append((new_job_id() if job_id is None else check_job_id(job_id), request))
            self._records.submit(jobs, by_compile_key=bool(offers))
        return [Job(id=job_id, client=self) for job_id, _ in jobs]


def _parameters(entry: str | Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of one job. A None counts as absent, except for the prompt."""
    own = {"prompt": entry} if isinstance(entry, str) else dict(entry)
    merged = {**common, **own}
    return {name: value for name, value in merged.items() if value is not None or name == "prompt"}

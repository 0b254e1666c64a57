"""The Python API: submit prompts, wait for pictures.

    from imagefleet import Client

    client = Client()
    job = client.submit("a small red circle on the left on a blue background", seed=7)
    print(job.result(timeout=60).images[0].url)

Waiting polls the job records. It opens no channel per job, so ten thousand jobs cost one round
trip a poll. Workers, Celery and JAX are not known here.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self

from imagefleet.producer.connection import Connection
from imagefleet.shared.errors import (
    InvalidRequest,
    JobCancelled,
    JobFailed,
    ResultTimeout,
    UnknownJob,
)
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.events import callback
from imagefleet.shared.jobs.model import (
    TERMINAL,
    CallbackEvent,
    JobRequest,
    JobResult,
    JobStatus,
    State,
    check_job_id,
    new_job_id,
)
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.settings import Settings

if TYPE_CHECKING:  # few producers plan datasets: the others do not pay for it at import
    from pathlib import Path

    from imagefleet.producer.bulk.readers import Rows
    from imagefleet.producer.bulk.run import BulkRun
    from imagefleet.shared.jobs.dead_letters import DeadLetters
    from imagefleet.shared.jobs.tenants import Tenants
    from imagefleet.shared.webhooks.outbox import Outbox

CHUNK: Final = 500
"""Jobs a round trip: 28,000 jobs/s with it, 1,600 one by one."""
_FIRST_POLL_S: Final = 0.01
_LAST_POLL_S: Final = 0.25


class Client:
    """A producer's door to the fleet. Safe to share between threads."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        tenant: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Settings come from the arguments, else from `IMAGEFLEET_…`. Connects at the first call.

        Args:
            tenant: on whose behalf jobs are submitted that do not say so themselves.

        Raises:
            ConfigurationError: a setting is wrong.
        """
        self.settings = settings or Settings.load(redis_url=redis_url, namespace=namespace)
        self._common = {"tenant": tenant}
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

    def submit(self, prompt: str, *, id: str | None = None, **parameters: Any) -> "Job":
        """Accept one prompt. Once this returns, the job will end in exactly one terminal state.

        Args:
            prompt: what to paint.
            id: the caller's own id; the same id with the same parameters is the same job.
            parameters: fields of `shared.jobs.model.JobRequest`, named as in diffusers.

        Raises:
            InvalidRequest: names the field, its value and the limit.
            BrokerUnavailable: nothing was accepted, or (a lost answer) it is not known; the same
                call with the same `id` settles it.
            QueueFull, TenantLimit: as many jobs wait as may; nothing was accepted.
        """
        [job] = self.submit_many([{"prompt": prompt, "id": id, **parameters}])
        return job

    def submit_many(
        self, prompts: Iterable[str | Mapping[str, Any]], **parameters: Any
    ) -> list["Job"]:
        """Accept many: prompts, or mappings of parameters; `parameters` hold for all of them.

        Raises as `submit`. Jobs are accepted in chunks of 500, each whole or not at all, in one
        step; the chunks before the one that raised are accepted. If an id stands already with
        other parameters, so are the other jobs of its chunk. With ids of their own, prompts can be
        submitted again as they are: what is accepted already is not accepted twice.
        """
        if isinstance(prompts, str | Mapping):
            raise InvalidRequest("prompts", prompts, "must be several; `submit` takes one")
        jobs: list[Job] = []
        entries = iter(prompts)
        while chunk := list(islice(entries, CHUNK)):
            common = {**self._common, **parameters}
            jobs += self._accept([_fields(entry, common) for entry in chunk])
        return jobs

    def get(self, job_id: str) -> "Job":
        """The handle of a job submitted earlier, from here or elsewhere. Raises UnknownJob."""
        job = Job(id=check_job_id(job_id), client=self)
        job.status()
        return job

    def statuses(self, job_ids: Iterable[str]) -> list[JobStatus]:
        """The records of many jobs in one round trip; those that are unknown here are left out."""
        ids = list(job_ids)
        with self.connection.translate_errors():
            found = self._records.read(ids)
        return [status for status in found if status is not None]

    def as_completed(
        self, jobs: Iterable["Job"], *, timeout: float | None = None
    ) -> Iterator["Job"]:
        """Yield each job as it ends, however it ends. Raises ResultTimeout after `timeout` s."""
        waiting = {job.id: job for job in jobs}
        for pause in pauses(waiting, timeout):
            yield from self.ended(waiting)
            if waiting:
                time.sleep(pause)

    def map(
        self,
        prompts: Iterable[str | Mapping[str, Any]],
        *,
        timeout: float | None = None,
        **parameters: Any,
    ) -> Iterator[JobResult]:
        """Results in the order of the prompts. Raises what the first failing job raises."""
        for job in self.submit_many(prompts, **parameters):
            yield job.result(timeout=timeout)

    def cancel(self, job_id: str) -> State:
        """Withdraw a job. Queued: cancelled at once. Running: stopped between steps.

        Returns the state it is in now; a finished job stays as it is. Raises UnknownJob.
        """
        with self.connection.translate_errors():
            request = self._records.get(check_job_id(job_id)).request
            event = callback(CallbackEvent.CANCELLED, job_id, request)
            while True:
                if self._records.cancel(job_id, "", event).happened:
                    return State.CANCELLED
                state = self._records.ask_to_cancel(job_id)
                if state is not State.QUEUED:  # or it was handed back just now: once more
                    return state

    def bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "BulkRun":
        """Make a dataset: a picture of every row in `destination`. Returns once it is under way;
        it needs this process no more. The same call again goes on where the run stands.

        Args:
            rows: a .txt, .csv, .jsonl or .parquet file, or an iterable of prompts or mappings.
            destination: s3://bucket/prefix, file:///folder, or a path.
            options: of `producer.bulk.start.start`, and what holds for all rows, in diffusers'
                names.

        Raises:
            InvalidRequest: the input, or what holds for all rows, is wrong.
            PlanConflict: the destination holds other work.
            StorageDenied, StorageUnavailable: the destination cannot be written.
        """
        from imagefleet.producer.bulk.regenerate import regenerate
        from imagefleet.producer.bulk.start import start

        again = partial(regenerate, self.submit)
        return start(self.connection, again, rows, destination, **options)

    def find_bulk(self, name: str) -> "BulkRun":
        """The run of a destination, or of a run id. Raises UnknownRun."""
        from imagefleet.producer.bulk.regenerate import regenerate
        from imagefleet.producer.bulk.start import find

        return find(self.connection, partial(regenerate, self.submit), name)

    def offers(self) -> dict[str, Offer]:
        """What the fleet can do, by model; empty before its first worker."""
        return self.connection.offers()

    def workers(self) -> list[str]:
        """The names of the workers that are alive. One that was killed counts for another lease."""
        return self.connection.workers()

    def check(self) -> None:
        """Raise BrokerUnavailable unless Redis answers."""
        self.connection.check()

    def close(self) -> None:
        self.connection.close()

    def _accept(self, entries: list[dict[str, Any]]) -> list["Job"]:
        with self.connection.translate_errors():
            offers = self.connection.offers()
            jobs = []
            for entry in entries:
                job_id = entry.pop("id", None)
                request = JobRequest.parse(entry)
                admit(request, offers)
                jobs.append((new_job_id() if job_id is None else check_job_id(job_id), request))
            self._records.submit(jobs, sorted_by_key=bool(offers))
        return [Job(id=job_id, client=self) for job_id, _ in jobs]

    def ended(self, waiting: dict[str, "Job"]) -> Iterator["Job"]:
        """Take out of `waiting` (by id) and yield what has ended. One round trip."""
        ids = list(waiting)
        with self.connection.translate_errors():
            states = self._records.states(ids)
        for job_id, state in zip(ids, states, strict=True):
            if state is None or state in TERMINAL:
                yield waiting.pop(job_id)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A handle: an id and the way to ask. Costs nothing to keep."""

    id: str
    client: Client = field(repr=False, compare=False)

    def status(self) -> JobStatus:
        """The record as it stands. Raises UnknownJob."""
        for status in self.client.statuses([self.id]):
            return status
        raise UnknownJob(f"no job {self.id!r} here: never submitted, or its record expired")

    def result(self, timeout: float | None = None) -> JobResult:
        """Wait until the job ends; its stored pictures.

        Raises:
            ResultTimeout: `timeout` seconds passed; the job goes on.
            JobFailed, JobCancelled, UnknownJob: it ended otherwise.
        """
        for _ in self.client.as_completed([self], timeout=timeout):
            pass
        return outcome(self.status())

    def cancel(self) -> State:
        """Withdraw it; see `Client.cancel`."""
        return self.client.cancel(self.id)


def outcome(status: JobStatus) -> JobResult:
    """The result of a job that ended, or the error that tells how it ended."""
    if status.state is State.CANCELLED:
        raise JobCancelled(f"job {status.id} was cancelled")
    if status.error is not None:
        raise JobFailed(f"job {status.id} failed: {status.error.message}", status.error.code)
    if status.result is None:
        raise ResultTimeout(f"job {status.id} is still {status.state}")
    return status.result


def _fields(entry: str | Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    own = {"prompt": entry} if isinstance(entry, str) else dict(entry)
    given = {**common, **own}
    return {name: value for name, value in given.items() if value is not None or name == "prompt"}


def pauses(waiting: Collection[object], timeout: float | None) -> Iterator[float]:
    """Seconds to wait before the next look, growing, until `waiting` is empty.

    Raises:
        ResultTimeout: `timeout` seconds have passed.
    """
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    pause = _FIRST_POLL_S
    while True:
        left = deadline - time.monotonic()
        yield min(pause, max(left, 0.0))
        if not waiting:
            return
        if left <= 0:
            count = len(waiting)
            left_over = "1 job is" if count == 1 else f"{count} jobs are"
            raise ResultTimeout(
                f"{left_over} not done after {timeout:g} s; work goes on, wait again"
            )
        pause = min(pause * 1.5, _LAST_POLL_S)

"""The Python API: submit prompts, wait for images.

    from imagefleet import Client

    client = Client()
    job = client.submit("a small red circle on the left on a blue background", seed=7)
    print(job.result(timeout=60).images[0].url)

`job_access` has the methods for jobs that are submitted already. This module does not depend on the
worker, Celery or JAX.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack, overload

from imagefleet.producer.client.job import Job, result_or_error
from imagefleet.producer.client.job_access import JobAccess
from imagefleet.producer.client.parameters import JobParameters
from imagefleet.producer.client.submission import EntryParser, without_missing
from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.connection.input_images import InputImageUploader
from imagefleet.producer.connection.misspelled_variables import misspelled_variable_warnings
from imagefleet.producer.connection.outages import OutageTolerance
from imagefleet.producer.connection.tracing import submission_span
from imagefleet.shared.errors import ImagefleetError, InvalidRequest
from imagefleet.shared.jobs.arguments import check_not_data_frame
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.settings.settings import Settings

if TYPE_CHECKING:  # few producers make datasets; the others do not pay for this import
    from pathlib import Path

    from redis import Redis

    from imagefleet.producer.bulk.dry_run import DryRun
    from imagefleet.producer.bulk.inputs import Rows
    from imagefleet.producer.bulk.run import BulkRun
    from imagefleet.producer.connection.lane_dead_letters import LaneDeadLetters
    from imagefleet.producer.connection.lane_outbox import LaneOutbox
    from imagefleet.shared.jobs.fleet_status import FleetReader
    from imagefleet.shared.jobs.tenants import Tenants

log = logging.getLogger(__name__)

JOBS_PER_SUBMISSION: Final = 500
"""Jobs per round trip: 28,000 jobs/s, against 1,600 jobs/s one by one."""


class Client(JobAccess):
    """The client submits jobs to the fleet and waits for them. Threads may share it."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        namespace: str | None = None,
        tenant: str | None = None,
        storage_url: str | None = None,
        settings: Settings | None = None,
        redis: "Redis | None" = None,
    ) -> None:
        """Take settings from the arguments, else from `IMAGEFLEET_…`. Connect at the first call.

        Args:
            tenant: the tenant of submitted jobs that do not name one, and of callbacks of datasets.
            storage_url: the fleet's store as this host reaches it. Default: as the workers do.
            redis: a client with `decode_responses=True`, used in the place of `redis_url`.

        Raises:
            ConfigurationError: a setting is wrong, or `redis` does not decode its answers.
        """
        self.settings = settings or Settings.load(
            redis_url=redis_url, namespace=namespace, storage_url=storage_url
        )
        for warning in misspelled_variable_warnings(os.environ, type(self.settings)):
            log.warning("%s", warning)
        self._defaults = {"tenant": tenant}
        super().__init__(Connection(self.settings, redis))

    @property
    def tenants(self) -> "Tenants":
        """What reads and sets the weights and limits of tenants."""
        return self.connection.tenants

    @property
    def dead_letters(self) -> "LaneDeadLetters":
        """What reads and redrives messages that the fleet gave up."""
        return self.connection.dead_letters

    @property
    def outbox(self) -> "LaneOutbox":
        """What reads and replays callbacks that wait or were given up."""
        return self.connection.outbox

    @property
    def fleet(self) -> "FleetReader":
        """What reads the workers and the queues."""
        return self.connection.fleet

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
        return next(self.submit_in_parts([entry], {}, several=False))[0]

    def submit_many(
        self, prompts: Iterable[str | Mapping[str, object]], **parameters: Unpack[JobParameters]
    ) -> list[Job]:
        """Submit many jobs: prompts, or mappings of parameters. `parameters` apply to all of them.

        Raises the errors of `submit`; an InvalidRequest names the entry, counted from 0. Parts of
        500 jobs are accepted, each as a whole or not at all. When one raises, those before it stay
        accepted. With your own ids, you can repeat the call: no job is accepted twice.
        """
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise InvalidRequest("prompts", prompts, "must be several; `submit` takes one")
        check_not_data_frame("prompts", prompts)
        return list(chain.from_iterable(self.submit_in_parts(prompts, parameters, several=True)))

    def submit_in_parts(
        self, entries: Iterable[object], common: Mapping[str, Any], *, several: bool
    ) -> Iterator[list[Job]]:
        """Yield the jobs of each 500 entries once they are accepted; see `submit_many`."""
        self.connection.warn_about_server()
        uploader = InputImageUploader(self.connection.store)
        parser = EntryParser(
            {**self._defaults, **without_missing(common)}, uploader, several=several
        )
        numbered = enumerate(entries)
        while part := list(islice(numbered, JOBS_PER_SUBMISSION)):
            offers = self.connection.offers()
            requests = parser.parse(part, offers, self.connection.records.id_source())
            job_ids = [job_id for job_id, _ in requests]
            name_entry = parser.name_entry_of_id((number for number, _ in part), job_ids)
            span = submission_span(len(requests), enabled=self.settings.traces)
            with self.connection.translate_errors(), name_entry, span as trace_parent:
                self.connection.records.submit(
                    requests,
                    by_compile_key=bool(offers),
                    offers=offers,
                    trace_parent=trace_parent,
                )
            yield [Job(id=job_id, client=self) for job_id in job_ids]

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

        All jobs are submitted when the first result is asked for.

        Args:
            timeout: seconds to wait for each result.
            return_exceptions: yield the error of a job in the place of its result, not raise it.

        Raises:
            The errors of `submit_many`, with the first result.
            JobFailed, JobCancelled, ResultTimeout: of the first job without a result, unless
                `return_exceptions` is set. The other jobs go on.
        """
        outages = OutageTolerance()
        wait = result_or_error if return_exceptions else Job.await_result
        yield from (wait(job, timeout, outages) for job in self.submit_many(prompts, **parameters))

    def bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "BulkRun":
        """Generate a dataset in `destination`, with the images of every row.

        Return once the run has started; it needs this process no longer. The same call resumes it.

        Args:
            rows: the name of a .txt, .csv, .json, .parquet or .arrow file or of an image with its
                parameters, a glob, a folder, an `s3://`, `gs://` or `hf://datasets/` URL, a list of
                `pathlib.Path`, or an iterable of prompts or mappings.
            destination: s3://bucket/prefix, gs://bucket/prefix, file:///folder, or a path.
            options: options of `producer.bulk.start_run.start` and of
                `producer.bulk.dataset_options.parse_spec`, and parameters of all rows, with
                diffusers' names.

        Raises:
            InvalidRequest: the input, an option or a parameter of all rows is wrong.
            PlanConflict: the destination holds another dataset.
            ConfigurationError: the client of a store is not installed, or has no credentials.
            StorageDenied, StorageUnavailable: the destination cannot be written.
            BrokerUnavailable: Redis does not answer. The same call goes on later.
        """
        from imagefleet.producer.bulk.start_run import start

        if options.get("callback_url") is not None and self._defaults["tenant"] is not None:
            options.setdefault("callback_tenant", self._defaults["tenant"])
        return start(self.connection, self.submit, rows, destination, **options)

    def dry_run_bulk(self, rows: "Rows", destination: "str | Path", **options: Any) -> "DryRun":
        """Check every row of a dataset, and estimate the time and bytes that `bulk` would need.

        Take the arguments of `bulk`, without those that concern the run alone (`max_failures`,
        `priority`, `callback_url`), and raise its errors. Nothing is written, uploaded or queued.
        """
        from imagefleet.producer.bulk.dry_run import dry_run

        return dry_run(self.connection, rows, destination, **options)

    def find_bulk(self, name: str) -> "BulkRun":
        """Return the bulk run of a destination or of a run id.

        Raises:
            UnknownRun: there is none.
            PlanConflict, PlanDamaged: the run's destination holds another plan now, or none.
        """
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

"""The audit of Prometheus' counters: it compares them with the records, which are the ledger.

What Redis counts is in the same step as the record, so it must agree exactly. What a worker counts
in its memory ends with its last scrape. So each job that its worker did not count must have been
recorded after that scrape, by a worker that ended since.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.jobs.status import JobStatus
from tests.chaos.audit import AuditReport
from tests.support.prometheus import PrometheusServer

_SECTION: Final = "Prometheus"
_RUN: Final = "[6h]"
"""A range that holds every sample of the run."""
_JOBS: Final = 'imagefleet_job_stage_seconds_count{stage="upload"}'
"""The jobs that succeeded in a worker."""
_RETRIES: Final = "imagefleet_job_retries_total"
_ENDS: Final = "imagefleet_job_ends_total"
COUNTED_WITHIN_S: Final = 2.0
"""Seconds from the record of a job to its worker's counter, at most, while Redis answers."""

Outage = tuple[float, float]
"""Unix seconds at which Redis was killed and was started again."""


@dataclass(frozen=True, kw_only=True)
class ScrapedWorker:
    """What Prometheus knows of one worker process."""

    name: str
    """The worker's own name, as in the results of its jobs."""
    alive: bool
    """Whether it lived when the run ended, and was scraped after the last job."""
    scraped_at: float
    """Unix seconds of its last scrape."""
    jobs: int
    """The jobs that succeeded in it, by its last scrape."""
    images: int
    """The images that its devices finished, by its last scrape."""


@dataclass(frozen=True, kw_only=True)
class ScrapedFleet:
    """What Prometheus knows of a fleet at the end of a run."""

    workers: Sequence[ScrapedWorker]
    ends: Mapping[str, int]
    """The jobs that ended, by state, or `failed:code`; from the exporter."""
    resets: int
    """How often a counter of the exporter decreased."""
    jobs: int
    """The jobs that succeeded: the sum of the last values of all processes, in PromQL."""
    increase: float
    """The same by `increase()`, which extrapolates."""
    retries: int
    left: float
    """Messages waiting, delayed or in flight, and callbacks that wait; from the exporter."""
    failed_rules: Collection[str]
    """The alert rules that could not be evaluated."""


def read_metrics(prometheus: PrometheusServer, alive: Collection[str]) -> ScrapedFleet:
    """Ask Prometheus for everything that the audit compares.

    Args:
        alive: The label `process` of the workers that live.
    """
    left = (
        "sum without(work)(imagefleet_in_flight) + imagefleet_delayed"
        " + sum without(model,shape,work)(imagefleet_queue_messages)"
        ' + sum without(state)(imagefleet_callbacks{state="waiting"})'
    )
    return ScrapedFleet(
        workers=_read_workers(prometheus, alive),
        ends={
            ":".join(filter(None, (each.labels["state"], each.labels.get("code")))): int(
                each.samples[-1][1]
            )
            for each in prometheus.query(_ENDS)
        },
        resets=int(prometheus.number(f"sum(resets({_ENDS}{_RUN}))")),
        jobs=int(prometheus.number(f"sum(last_over_time({_JOBS}{_RUN}))")),
        increase=prometheus.number(f"sum(increase({_JOBS}{_RUN}))"),
        retries=int(prometheus.number(f"sum(last_over_time({_RETRIES}{_RUN}))")),
        left=prometheus.number(f"sum({left})"),
        failed_rules=prometheus.failed_rules(),
    )


def _read_workers(prometheus: PrometheusServer, alive: Collection[str]) -> list[ScrapedWorker]:
    def last(metric: str) -> dict[str, float]:
        series = prometheus.query(f"{metric}{_RUN}")
        return {each.labels["process"]: each.samples[-1][1] for each in series}

    info = 'imagefleet_worker_info{worker!=""}'  # it has no labels until the worker is built
    names = {each.labels["process"]: each for each in prometheus.query(f"{info}{_RUN}")}
    jobs, images = last(_JOBS), last("imagefleet_images_total")
    return [
        ScrapedWorker(
            name=series.labels["worker"],
            alive=process in alive,
            scraped_at=series.samples[-1][0],
            jobs=int(jobs.get(process, 0)),
            images=int(images.get(process, 0)),
        )
        for process, series in names.items()
    ]


def audit_metrics(
    report: AuditReport,
    fleet: ScrapedFleet,
    statuses: Mapping[str, JobStatus],
    outages: Sequence[Outage],
) -> None:
    """Check that Prometheus' counters agree with the records.

    Args:
        statuses: Every record in Redis.
        outages: When Redis was away. A command may have been applied and not answered then; its
            worker counts the job once Redis answers again, if it still lives.
    """
    _audit_exporter(report, fleet, statuses)
    recorded: defaultdict[str, list[JobStatus]] = defaultdict(list)
    for status in statuses.values():
        if status.result is not None:
            recorded[status.result.worker].append(status)
    report.note(_SECTION, "jobs that succeeded, by the records", sum(map(len, recorded.values())))
    report.note(_SECTION, "by the workers' counters, sum of the last values", fleet.jobs)
    report.note(_SECTION, "by the workers' counters, increase()", f"{fleet.increase:.1f}")
    report.note(_SECTION, "worker processes that were scraped", len(fleet.workers))
    scraped = {worker.name for worker in fleet.workers}
    never = sum(len(jobs) for name, jobs in recorded.items() if name not in scraped)
    report.note(_SECTION, "jobs of workers that were never scraped", never)
    _audit_workers(report, fleet.workers, recorded, outages)
    retries = sum(status.retries for status in statuses.values())
    report.note(_SECTION, "retries, counted of recorded", f"{fleet.retries} of {retries}")
    beyond = [fleet.retries - retries] if fleet.retries > retries else []
    report.expect_none(_SECTION, "retries counted beyond the records", beyond)


def _audit_workers(
    report: AuditReport,
    workers: Sequence[ScrapedWorker],
    recorded: Mapping[str, Sequence[JobStatus]],
    outages: Sequence[Outage],
) -> None:
    late, fewer, more, unfinished = 0, [], [], []
    for worker in workers:
        jobs = recorded.get(worker.name, ())
        counted = [each for each in jobs if not _may_be_uncounted(each, worker, outages)]
        late += max(0, len(jobs) - max(worker.jobs, len(counted)))
        comparison = f"{worker.name} counted {worker.jobs} of {len(jobs)}"
        if worker.jobs < len(counted):
            fewer.append(comparison)
        if worker.jobs > len(jobs):
            more.append(comparison)
        images = sum(len(each.result.images) for each in counted if each.result)
        if worker.images < images:
            unfinished.append(f"{worker.name} counted {worker.images} of {images} images")
    report.note(_SECTION, "jobs recorded after the last scrape of a worker that ended", late)
    report.expect_none(_SECTION, "workers that counted fewer jobs than they had to", fewer)
    report.expect_none(_SECTION, "workers that counted more jobs than they recorded", more)
    report.expect_none(_SECTION, "workers that counted fewer images than recorded", unfinished)


def _may_be_uncounted(status: JobStatus, worker: ScrapedWorker, outages: Sequence[Outage]) -> bool:
    """Return whether the worker may have ended before it counted this job in a scrape."""
    if worker.alive:
        return False
    assert status.finished_at is not None, status.id
    if any(start - COUNTED_WITHIN_S <= status.finished_at <= end for start, end in outages):
        return True
    return status.finished_at > worker.scraped_at - COUNTED_WITHIN_S


def _audit_exporter(
    report: AuditReport, fleet: ScrapedFleet, statuses: Mapping[str, JobStatus]
) -> None:
    ends = Counter(
        f"{status.state}:{status.error.code}" if status.error else f"{status.state}"
        for status in statuses.values()
        if status.done
    )
    report.note(_SECTION, "ends of jobs, from the exporter", sum(fleet.ends.values()))
    differ = [
        f"{name}: {fleet.ends.get(name, 0)} counted, {ends[name]} recorded"
        for name in sorted(ends.keys() | fleet.ends.keys())
        if fleet.ends.get(name, 0) != ends[name]
    ]
    report.expect_none(_SECTION, "ends that differ from the records, by state and code", differ)
    resets = [fleet.resets] if fleet.resets else []
    report.expect_none(_SECTION, "resets of the exporter's counters", resets)
    left = [fleet.left] if fleet.left else []
    report.expect_none(_SECTION, "messages and callbacks left, by the exporter", left)
    report.expect_none(_SECTION, "alert rules that cannot be evaluated", fleet.failed_rules)

"""The audit of Prometheus' counters finds each difference: the tests make every kind by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from imagefleet.shared.jobs.model import ImageFormat, JobError, State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import ImageResult, JobResult
from imagefleet.shared.jobs.status import JobStatus
from tests.chaos.audit import AuditReport
from tests.chaos.audit_metrics import ScrapedFleet, ScrapedWorker, audit_metrics

_IMAGE = ImageResult(
    index=0, key="k", url="u", seed=1, sha256="0", size=1, height=8, width=8, format=ImageFormat.PNG
)
_OUTAGE = (300.0, 302.0)
Change = Callable[[ScrapedFleet], ScrapedFleet]


def _status(job_id: str, state: State, worker: str = "", at: float = 0.0) -> JobStatus:
    result = JobResult(
        images=(_IMAGE, _IMAGE), model="m", model_digest="d", worker=worker, timings={}
    )
    failed = JobError(code="too_many_deliveries", message="")
    return JobStatus(
        id=job_id,
        state=state,
        request=JobRequest(prompt="a", seed=1),
        submitted_at=0.0,
        finished_at=at,
        retries=1,
        result=result if state is State.SUCCEEDED else None,
        error=failed if state is State.FAILED else None,
    )


def _records() -> dict[str, JobStatus]:
    records = [
        _status("a", State.SUCCEEDED, "killed", 100.0),
        _status("b", State.SUCCEEDED, "killed", 200.0),  # after the last scrape
        _status("c", State.SUCCEEDED, "killed with Redis", 299.0),
        _status("d", State.SUCCEEDED, "alive", 400.0),
        _status("e", State.SUCCEEDED, "never scraped", 150.0),
        _status("f", State.FAILED, at=150.0),
        _status("g", State.CANCELLED, at=150.0),
    ]
    return {each.id: each for each in records}


def _worker(name: str, scraped_at: float, jobs: int, *, alive: bool = False) -> ScrapedWorker:
    return ScrapedWorker(name=name, alive=alive, scraped_at=scraped_at, jobs=jobs, images=2 * jobs)


def _fleet() -> ScrapedFleet:
    return ScrapedFleet(
        workers=[
            _worker("killed", 190.0, 1),
            _worker("killed with Redis", 310.0, 0),
            _worker("alive", 401.0, 1, alive=True),
        ],
        ends={"succeeded": 5, "failed:too_many_deliveries": 1, "cancelled": 1},
        resets=0,
        jobs=2,
        increase=1.7,
        retries=6,
        left=0,
        failed_rules=[],
    )


def _audit(fleet: ScrapedFleet) -> AuditReport:
    report = AuditReport(title="by hand")
    audit_metrics(report, fleet, _records(), [_OUTAGE])
    return report


def test_only_what_a_worker_did_after_its_last_scrape_may_be_missing() -> None:
    report = _audit(_fleet())
    assert report.problems == []
    rows = report.sections["Prometheus"]
    assert rows["jobs that succeeded, by the records"] == "5"
    assert rows["by the workers' counters, sum of the last values"] == "2"
    assert rows["jobs recorded after the last scrape of a worker that ended"] == "2"
    assert rows["jobs of workers that were never scraped"] == "1"
    assert rows["retries, counted of recorded"] == "6 of 7"


def _change_worker(number: int, **fields: object) -> Change:
    def change(fleet: ScrapedFleet) -> ScrapedFleet:
        workers = list(fleet.workers)
        workers[number] = replace(workers[number], **fields)  # type: ignore[arg-type]
        return replace(fleet, workers=workers)

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            lambda fleet: replace(fleet, ends={**fleet.ends, "failed:out_of_memory": 1}),
            "ends that differ from the records, by state and code",
            id="an end too many",
        ),
        pytest.param(
            lambda fleet: replace(fleet, ends={"succeeded": 5, "cancelled": 1}),
            "ends that differ from the records, by state and code",
            id="an end too few",
        ),
        pytest.param(
            lambda fleet: replace(fleet, resets=1), "resets of the exporter's counters", id="reset"
        ),
        pytest.param(
            lambda fleet: replace(fleet, left=1.0),
            "messages and callbacks left, by the exporter",
            id="left",
        ),
        pytest.param(
            lambda fleet: replace(fleet, failed_rules=["a: no"]),
            "alert rules that cannot be evaluated",
            id="rule",
        ),
        pytest.param(
            lambda fleet: replace(fleet, retries=8),
            "retries counted beyond the records",
            id="retries",
        ),
        pytest.param(
            _change_worker(0, jobs=0),
            "workers that counted fewer jobs than they had to",
            id="a killed worker counted fewer",
        ),
        pytest.param(
            _change_worker(2, jobs=0),
            "workers that counted fewer jobs than they had to",
            id="a living worker counted fewer",
        ),
        pytest.param(
            _change_worker(0, scraped_at=400.0, images=4),
            "workers that counted fewer jobs than they had to",
            id="a later scrape without the job",
        ),
        pytest.param(
            _change_worker(1, jobs=2),
            "workers that counted more jobs than they recorded",
            id="more jobs",
        ),
        pytest.param(
            _change_worker(2, images=1),
            "workers that counted fewer images than recorded",
            id="fewer images",
        ),
    ],
)
def test_a_difference_is_a_problem(change: Change, problem: str) -> None:
    problems = _audit(change(_fleet())).problems
    assert [each.partition(":")[0] for each in problems] == [problem]

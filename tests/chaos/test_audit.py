"""The audit finds each problem: the tests make every kind by hand and expect its name."""

import hashlib
import http.client
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from imagefleet.shared.jobs.model import ImageFormat, JobError, State
from imagefleet.shared.jobs.result import ImageResult, JobResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.job_keys import metadata_key
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.webhooks.signature import new_secret, sign
from tests.chaos.audit import (
    AuditReport,
    audit_callbacks,
    audit_keys,
    audit_records,
    audit_tenants,
    terminal_fields,
)
from tests.chaos.audit_images import audit_images
from tests.chaos.oracle import FAKE
from tests.chaos.planned_jobs import (
    WITHOUT_GATEWAYS,
    PlannedJob,
    ProducerKind,
    Scenario,
    draw_jobs,
)
from tests.chaos.webhook_receiver import FlakyReceiver

Damage = Callable[[dict[str, JobStatus], MemoryStore], None]


def _planned_jobs() -> list[PlannedJob]:
    planned = draw_jobs(7, jobs=40, seconds=1.0, killers=0, callback_url="http://127.0.0.1/")
    return [job for job in planned if job.scenario is Scenario.SUCCEEDS]


def _succeeded(job: PlannedJob, store: MemoryStore) -> JobStatus:
    """Return the record, and store the objects, of a job that succeeded."""
    images = []
    for each in FAKE.expected(job):
        stored = store.put(each.key, each.data, "image/png")
        metadata_file = (
            f'{{"job_id": "{job.id}", "image_index": {each.index},'
            f' "image": {{"sha256": "{stored.sha256}"}}}}'
        )
        store.put(metadata_key(job.id, each.index), metadata_file.encode(), "application/json")
        images.append(
            ImageResult(
                index=each.index,
                key=each.key,
                url=stored.url,
                seed=each.seed,
                sha256=hashlib.sha256(each.data).hexdigest(),
                size=len(each.data),
                height=job.parameters["height"],
                width=job.parameters["width"],
                format=ImageFormat(job.parameters["format"]),
            )
        )
    result = JobResult(
        images=tuple(images), model="fake", model_digest="sha256:0", worker="w", timings={}
    )
    now = time.time()
    return JobStatus(
        id=job.id,
        state=State.SUCCEEDED,
        request=job.request,
        submitted_at=now,
        started_at=now,
        finished_at=now,
        deliveries=1,
        result=result,
    )


def _problems_after(damage: Damage) -> list[str]:
    planned, store = _planned_jobs(), MemoryStore()
    statuses = {job.id: _succeeded(job, store) for job in planned}
    first_terminal = {job_id: terminal_fields(status) for job_id, status in statuses.items()}
    damage(statuses, store)
    report = AuditReport(title="by hand")
    audit_records(report, planned, [job.id for job in planned], statuses, first_terminal)
    audit_images(report, {job.id: job for job in planned}, statuses, store)
    return [sentence.partition(":")[0] for sentence in report.problems]


def test_a_run_without_problems_has_an_empty_list_of_problems() -> None:
    assert _problems_after(lambda statuses, store: None) == []


def _leave_running(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    statuses["job-3"] = statuses["job-3"].model_copy(update={"state": State.RUNNING})


def _set_failed(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    error = JobError(code="device_error", message="")
    statuses["job-3"] = statuses["job-3"].model_copy(update={"state": State.FAILED, "error": error})


def _finish_again(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    statuses["job-3"] = statuses["job-3"].model_copy(update={"finished_at": 1.0})


def _add_foreign_record(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    statuses["foreign"] = statuses["job-3"].model_copy(update={"id": "foreign", "result": None})
    statuses["foreign"] = statuses["foreign"].model_copy(update={"state": State.CANCELLED})


def _first_key(statuses: dict[str, JobStatus], job_id: str) -> str:
    result = statuses[job_id].result
    assert result is not None
    return result.images[0].key


def _swap_images(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put(_first_key(statuses, "job-3"), store.get(_first_key(statuses, "job-4")), "image/png")


def _delete_image(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    store.delete(_first_key(statuses, "job-3"))


def _add_unplanned_object(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put("jobs/job-3/99.png", b"", "image/png")


def _swap_metadata_files(statuses: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put(metadata_key("job-3", 0), store.get(metadata_key("job-4", 0)), "application/json")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_leave_running, "lost"),
        (_set_failed, "wrong terminal states"),
        (_finish_again, "changed after they ended"),
        (_add_foreign_record, "foreign records"),
        (_swap_images, "other bytes, SHA-256 or pixels than the job's"),
        (_delete_image, "missing"),
        (_add_unplanned_object, "unplanned objects"),
        (_swap_metadata_files, "other bytes, SHA-256 or pixels than the job's"),
    ],
)
def test_each_problem_is_named(damage: Damage, sentence: str) -> None:
    assert sentence in _problems_after(damage)


Waits = list[tuple[str, float, float]]
"""The tenant, the submission and the wait of jobs, in seconds."""


def _starved(waits: Waits) -> list[str]:
    planned, statuses = [], {}
    for number, (tenant, submitted_at, waited) in enumerate(waits):
        job = PlannedJob(
            id=f"job-{number}",
            producer=ProducerKind.SUBMIT,
            scenario=Scenario.SUCCEEDS,
            due_s=submitted_at,
            resent=False,
            parameters={"prompt": "a", "tenant": tenant, "priority": 3},
        )
        planned.append(job)
        statuses[job.id] = JobStatus(
            id=job.id,
            state=State.SUCCEEDED,
            request=job.request,
            submitted_at=1000 + submitted_at,
            started_at=1000 + submitted_at + waited,
            deliveries=1,
        )
    report = AuditReport(title="by hand")
    audit_tenants(report, planned, statuses)
    return report.problems


FLOOD: Waits = [
    *(("flood", number / 10, 20 + number / 10) for number in range(40)),
    *(("flood", 40 + number, 1.0) for number in range(40)),
]
"""It floods in the first 4 s, which is over after about 27 s."""


def test_a_tenant_that_waits_longer_than_the_one_that_floods_is_named() -> None:
    [problem] = _starved([*FLOOD, *(("gold", number, 40.0) for number in range(8))])
    assert problem == "waited longer than the one that floods: 1 (gold)"


@pytest.mark.parametrize(
    "others",
    [
        [],
        [("gold", number, 24.0) for number in range(20)],  # as long as the one that floods
        [("gold", number, 40.0) for number in range(7)],  # too few to tell
        [("gold", 30 + number, 40.0) for number in range(20)],  # the flood was over
    ],
)
def test_tenants_that_waited_no_longer_than_the_one_that_floods_are_no_problem(
    others: Waits,
) -> None:
    assert _starved([*FLOOD, *others]) == []
    assert _starved(others) == []


def _post(receiver: FlakyReceiver, callback_id: str, secret: str) -> int:
    job_id, _, event = callback_id.rpartition(".")
    body = json.dumps({"type": f"job.{event.strip('+')}", "event": event, "data": {"id": job_id}})
    headers = sign(callback_id, body, [secret], datetime.now(UTC))
    address = urlsplit(receiver.url)
    connection = http.client.HTTPConnection(address.netloc)
    connection.request("POST", address.path, body.encode(), headers)
    with connection.getresponse() as answer:
        status = answer.status
    connection.close()
    return status


@pytest.mark.parametrize(
    ("arrivals", "problems"),
    [
        (["{id}.succeeded"], []),
        (["{id}.succeeded", "{id}.succeeded"], []),
        (["{id}.succeeded", "{id}.succeeded+"], ["accepted under several ids"]),
        ([], ["missing"]),
        (["{id}.succeeded", "{id}.failed"], ["of another event or job"]),
        (["{id}.succeeded", "nobody.succeeded"], ["of another event or job"]),
    ],
)
def test_callbacks_that_are_missing_or_too_many_are_named(
    arrivals: list[str], problems: list[str]
) -> None:
    job = next(job for job in _planned_jobs() if "callback_url" in job.parameters)
    statuses = {job.id: _succeeded(job, MemoryStore())}
    report = AuditReport(title="by hand")
    with FlakyReceiver(seed=1) as receiver:
        receiver.always_up = True
        for callback_id in arrivals:
            assert _post(receiver, callback_id.format(id=job.id), receiver.secret) == 204
        audit_callbacks(report, [job], statuses, receiver)
    assert [sentence.partition(":")[0] for sentence in report.problems] == problems


def test_a_callback_signed_with_another_secret_is_named() -> None:
    report = AuditReport(title="by hand")
    with FlakyReceiver(seed=1) as receiver:
        receiver.always_up = True
        assert _post(receiver, "job-1.succeeded", new_secret()) == 401
        audit_callbacks(report, [], {}, receiver)
    assert any("badly signed" in sentence for sentence in report.problems)


def test_keys_that_remain_in_redis_are_named(own_redis: LocalRedisServer) -> None:
    report = AuditReport(title="by hand")
    with connect(own_redis.url) as client:
        client.hset("chaos:claims:somebody", "1", "x")
        audit_keys(report, Lanes.single(client, "chaos"), ["no-dead-letter"], [])
    [left, missing] = report.problems
    assert "chaos:claims:somebody" in left
    assert "no-dead-letter" in missing


def test_the_same_seed_draws_the_same_jobs() -> None:
    def drawn(seed: int) -> list[PlannedJob]:
        return draw_jobs(seed, jobs=50, seconds=5, killers=1, callback_url="http://127.0.0.1/")

    assert drawn(1) == drawn(1) != drawn(2)
    assert {job.producer for job in drawn(1)} == set(WITHOUT_GATEWAYS)

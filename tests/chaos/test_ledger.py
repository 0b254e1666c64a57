"""The ledger sees what it is there to see: each fault is made by hand, and must be named."""

import hashlib
import http.client
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

from imagefleet.shared.jobs.model import (
    ImageFormat,
    ImageResult,
    JobError,
    JobResult,
    JobStatus,
    State,
)
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage.job_keys import metadata_key
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.shared.webhooks.signature import new_secret, sign
from tests.chaos.ledger import Ledger, audit_callbacks, audit_keys, audit_records, end_of
from tests.chaos.mailbox import Mailbox
from tests.chaos.orders import Fate, Order, Producer, draw
from tests.chaos.pictures import audit_pictures, paint

Spoil = Callable[[dict[str, JobStatus], MemoryStore], None]


def _orders() -> list[Order]:
    orders = draw(7, jobs=40, seconds=1.0, killers=0, callback_url="http://127.0.0.1/")
    return [order for order in orders if order.fate is Fate.PAINTED]


def _painted(order: Order, store: MemoryStore) -> JobStatus:
    """What a fleet without faults leaves."""
    images = []
    for each in paint(order):
        stored = store.put(each.key, each.data, "image/png")
        sidecar = (
            f'{{"job_id": "{order.id}", "image_index": {each.index},'
            f' "image": {{"sha256": "{stored.sha256}"}}}}'
        )
        store.put(metadata_key(order.id, each.index), sidecar.encode(), "application/json")
        images.append(
            ImageResult(
                index=each.index,
                key=each.key,
                url=stored.url,
                seed=each.seed,
                sha256=hashlib.sha256(each.data).hexdigest(),
                size=len(each.data),
                height=order.parameters["height"],
                width=order.parameters["width"],
                format=ImageFormat(order.parameters["format"]),
            )
        )
    result = JobResult(
        images=tuple(images), model="fake", model_digest="sha256:0", worker="w", timings={}
    )
    now = time.time()
    return JobStatus(
        id=order.id,
        state=State.SUCCEEDED,
        request=order.request,
        submitted_at=now,
        started_at=now,
        finished_at=now,
        deliveries=1,
        result=result,
    )


def _audited(spoil: Spoil) -> list[str]:
    orders, store = _orders(), MemoryStore()
    found = {order.id: _painted(order, store) for order in orders}
    first_ends = {job_id: end_of(status) for job_id, status in found.items()}
    spoil(found, store)
    ledger = Ledger(title="by hand")
    audit_records(ledger, orders, [order.id for order in orders], found, first_ends)
    audit_pictures(ledger, {order.id: order for order in orders}, found, store)
    return [sentence.partition(":")[0] for sentence in ledger.wrong]


def test_a_fleet_without_faults_has_a_clean_ledger() -> None:
    assert _audited(lambda found, store: None) == []


def _forget(found: dict[str, JobStatus], store: MemoryStore) -> None:
    found["job-3"] = found["job-3"].model_copy(update={"state": State.RUNNING})


def _fail(found: dict[str, JobStatus], store: MemoryStore) -> None:
    error = JobError(code="device_error", message="")
    found["job-3"] = found["job-3"].model_copy(update={"state": State.FAILED, "error": error})


def _finish_again(found: dict[str, JobStatus], store: MemoryStore) -> None:
    found["job-3"] = found["job-3"].model_copy(update={"finished_at": 1.0})


def _invent(found: dict[str, JobStatus], store: MemoryStore) -> None:
    found["nobody's"] = found["job-3"].model_copy(update={"id": "nobody's", "result": None})
    found["nobody's"] = found["nobody's"].model_copy(update={"state": State.CANCELLED})


def _picture(found: dict[str, JobStatus], job_id: str) -> str:
    result = found[job_id].result
    assert result is not None
    return result.images[0].key


def _swap(found: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put(_picture(found, "job-3"), store.get(_picture(found, "job-4")), "image/png")


def _drop(found: dict[str, JobStatus], store: MemoryStore) -> None:
    store.delete(_picture(found, "job-3"))


def _leave_behind(found: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put("jobs/job-3/99.png", b"", "image/png")


def _swap_sidecars(found: dict[str, JobStatus], store: MemoryStore) -> None:
    store.put(metadata_key("job-3", 0), store.get(metadata_key("job-4", 0)), "application/json")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (_forget, "lost"),
        (_fail, "wrong ends"),
        (_finish_again, "changed after their end"),
        (_invent, "foreign records"),
        (_swap, "other bytes, SHA-256 or pixels than the job's"),
        (_drop, "missing"),
        (_leave_behind, "belonging to nothing"),
        (_swap_sidecars, "other bytes, SHA-256 or pixels than the job's"),
    ],
)
def test_each_fault_is_named(spoil: Spoil, sentence: str) -> None:
    assert sentence in _audited(spoil)


def _post(mailbox: Mailbox, callback_id: str, secret: str) -> int:
    headers = sign(callback_id, "{}", [secret], datetime.now(UTC))
    address = urlsplit(mailbox.url)
    connection = http.client.HTTPConnection(address.netloc)
    connection.request("POST", address.path, b"{}", headers)
    with connection.getresponse() as answer:
        status = answer.status
    connection.close()
    return status


@pytest.mark.parametrize(
    ("arrivals", "wrong"),
    [
        (["{id}.succeeded"], []),
        (["{id}.succeeded", "{id}.succeeded"], []),
        ([], ["missing"]),
        (["{id}.succeeded", "{id}.failed"], ["of another event or job"]),
        (["{id}.succeeded", "nobody.succeeded"], ["of another event or job"]),
    ],
)
def test_callbacks_that_are_missing_or_too_many_are_named(
    arrivals: list[str], wrong: list[str]
) -> None:
    order = next(order for order in _orders() if "callback_url" in order.parameters)
    found = {order.id: _painted(order, MemoryStore())}
    ledger = Ledger(title="by hand")
    with Mailbox(seed=1) as mailbox:
        mailbox.calm = True
        for callback_id in arrivals:
            assert _post(mailbox, callback_id.format(id=order.id), mailbox.secret) == 204
        audit_callbacks(ledger, [order], found, mailbox)
    assert [sentence.partition(":")[0] for sentence in ledger.wrong] == wrong


def test_a_callback_signed_with_another_secret_is_named() -> None:
    ledger = Ledger(title="by hand")
    with Mailbox(seed=1) as mailbox:
        mailbox.calm = True
        assert _post(mailbox, "job-1.succeeded", new_secret()) == 401
        audit_callbacks(ledger, [], {}, mailbox)
    assert any("badly signed" in sentence for sentence in ledger.wrong)


def test_what_is_left_in_redis_is_named(own_redis: LocalRedisServer) -> None:
    ledger = Ledger(title="by hand")
    with connect(own_redis.url) as client:
        client.hset("chaos:claims:somebody", "1", "x")
        audit_keys(ledger, client, "chaos", ["never-buried"])
    [left, unburied] = ledger.wrong
    assert "chaos:claims:somebody" in left
    assert "never-buried" in unburied


def test_the_same_seed_draws_the_same_orders() -> None:
    def drawn(seed: int) -> list[Order]:
        return draw(seed, jobs=50, seconds=5, killers=1, callback_url="http://127.0.0.1/")

    assert drawn(1) == drawn(1) != drawn(2)
    assert {order.producer for order in drawn(1)} == set(Producer)

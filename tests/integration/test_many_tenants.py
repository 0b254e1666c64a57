"""Claims while very many tenants wait, as anybody can invent them: bounded, and still in turn."""

from collections import Counter

import pytest
import redis

from imagefleet.shared.errors import QueueFull
from imagefleet.shared.jobs.model import new_job_id
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import known_queues_key, limits_key, urgent_queues_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.queues.claim_types import QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.integration.conftest import MakeClaims
from tests.support.processes import until


@pytest.fixture
def group(namespace: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",))]


def _claim_and_ack(claims: Claims, groups: list[QueueGroup], batches: int) -> Counter[str]:
    """Claim and acknowledge batches of 8 images, and count their messages by text."""
    served: Counter[str] = Counter()
    for _ in range(batches):
        for message in claims.claim(groups, 8):
            served[message.message] += 1
            claims.ack(message.tag)
    return served


def _invent_tenants(
    client: redis.Redis, namespace: str, queue: str, tenants: int, messages: int
) -> None:
    names = [f"{namespace}.{queue}@t{number}" for number in range(tenants)]
    with client.pipeline(transaction=False) as pipe:
        pipe.sadd(known_queues_key(namespace), *names)
        for name in names:
            pipe.lpush(list_key(name, 3), *[f"{name.rpartition('@')[2]}"] * messages)
        pipe.execute()


def _commands(client: redis.Redis) -> Counter[str]:
    """Return how often each command was called, also by scripts."""
    stats = client.info("commandstats")
    return Counter({name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()})


@pytest.mark.parametrize("queue", ["q", "unserved"])
def test_a_claim_reads_a_bounded_part_of_very_many_queues(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    namespace: str,
    queue: str,
) -> None:
    _invent_tenants(client, namespace, queue, 5_000, 1)
    claims = make_claims("w")
    for _ in range(3):
        before = _commands(client)
        claims.claim(group, 8)
        called = _commands(client) - before
        assert not called["smembers"]
        assert called.total() < 500, called


def test_very_many_tenants_get_equal_shares_in_the_long_run(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _invent_tenants(client, namespace, "q", 800, 6)
    claims = make_claims("w")
    served = _claim_and_ack(claims, group, 300)
    assert served.total() == 2_400
    assert len(served) > 760, "each is served before some are served often"
    assert max(served.values()) <= 5
    served += _claim_and_ack(claims, group, 1_000)
    assert set(served.values()) == {6}
    assert not client.exists(known_queues_key(namespace))


def test_the_accounts_of_very_many_tenants_stay_small(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _invent_tenants(client, namespace, "q", 3_000, 1)
    claims = make_claims("w")
    assert len(_claim_and_ack(claims, group, 450)) == 3_000
    assert claims._claim.state_length() < 30_000


def test_a_job_of_the_highest_level_is_found_at_once_among_very_many_queues(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    _invent_tenants(client, namespace, "default.native", 2_000, 1)
    claims = make_claims("w")
    group = [QueueGroup(name="64x64", queues=(f"{namespace}.default.native",))]
    records = JobRecords(client, namespace, 3600)
    for number in range(3):
        job = JobRequest(prompt="a", priority=0, tenant=f"urgent{number}")
        records.submit([(f"u{number}", job)])
        assert f'"u{number}"' in claims.claim(group, 8)[0].message


def test_queues_of_the_highest_level_are_remembered_until_they_are_empty(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _invent_tenants(client, namespace, "q", 400, 1)
    client.lpush(f"{namespace}.q@t7", *["a push that only adds to the known queues"] * 9)
    claims, urgent = make_claims("w"), urgent_queues_key(namespace)
    while not client.exists(urgent):
        assert claims.claim(group, 8)
    assert client.smembers(urgent) == {f"{namespace}.q@t7"}
    while not client.exists(f"{namespace}.q@t7"):
        assert any("only adds" in each.message for each in claims.claim(group, 8))
    for _ in range(100):  # a claim forgets only the empty queues that it looks at
        claims.claim(group, 8)
    assert not client.exists(urgent, known_queues_key(namespace))


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    """Return records of a namespace where 2,000 tenants have 2 jobs each."""
    _invent_tenants(client, namespace, "q", 2_000, 2)
    return JobRecords(client, namespace, 3600)


def _submit(records: JobRecords, tenant: str, jobs: int = 1) -> None:
    records.submit([(new_job_id(), JobRequest(prompt="a", tenant=tenant)) for _ in range(jobs)])


def _submit_until_full(records: JobRecords, tenant: str) -> int:
    for accepted in range(100):
        try:
            _submit(records, tenant)
        except QueueFull:
            return accepted
    return 100


@pytest.mark.parametrize(("name", "limit"), [("late", 15), ("*", 4_015)])
@pytest.mark.parametrize("expired", [False, True])
def test_a_limit_holds_among_very_many_queues(
    records: JobRecords, client: redis.Redis, namespace: str, name: str, limit: int, expired: bool
) -> None:
    client.hset(limits_key(namespace), name, limit)
    for _ in range(15):
        if expired:
            client.delete(_counts(namespace))
        _submit(records, "late")
    for _ in range(2):
        with pytest.raises(QueueFull, match=f"{limit} wait"):
            _submit(records, "late")
        client.delete(_counts(namespace))
    client.delete(list_key(f"{namespace}.default.native@late", 3), _counts(namespace))
    assert _submit_until_full(records, "late") == 15, "claimed jobs do not wait any more"


def _counts(namespace: str) -> str:
    return f"{known_queues_key(namespace)}:waiting"


def test_a_new_limit_holds_at_once_among_very_many_queues(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    client.hset(limits_key(namespace), "*", 5_000)
    _submit(records, "late", 8)
    client.hset(limits_key(namespace), "late", 10)
    assert _submit_until_full(records, "late") == 2


def test_a_count_among_very_many_queues_is_used_again(
    records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    client.hset(limits_key(namespace), "*", 5_000)

    def counts_for_a_second() -> bool:
        client.delete(_counts(namespace))
        _submit(records, "late")
        return 0 < client.pttl(_counts(namespace)) <= 1_000

    until(counts_for_a_second)  # on a busy machine a second may pass in between
    with client.pipeline(transaction=True) as pipe:
        pipe.hset(_counts(namespace), "*", 4_990)
        pipe.persist(_counts(namespace))  # the rest of this test may take more than a second
        pipe.execute()
    before = _commands(client)
    assert _submit_until_full(records, "late") == 10
    assert (_commands(client) - before).total() < 500

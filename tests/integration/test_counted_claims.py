"""Claims on a real Redis: whatever goes round is counted, and nothing is held for ever."""

import hashlib
import time
from typing import Any

import pytest
import redis

from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.tenants import Tenants
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.redis_client.write_errors import is_outage
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from imagefleet.worker.queues.lease_keeper import LeaseKeeper
from tests.integration.conftest import MakeClaims


@pytest.fixture
def queue(namespace: str) -> str:
    return f"{namespace}.q"


def _claim(claims: Claims, queue: str) -> Claimed:
    [claimed] = claims.claim([QueueGroup(name="64x64", queues=(queue,))], 1)
    return claimed


def test_a_message_whose_record_has_not_ended_at_its_ack_is_requeued_counted(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    records = JobRecords(client, namespace, 3600)
    records.submit([("j", JobRequest(prompt="a"))])
    client.lpush(queue, "m")
    claims = make_claims("w")
    for delivery in (1, 2, 3):
        claimed = _claim(claims, queue)
        assert claimed.deliveries == delivery
        claims.ack(claimed.tag, records.key("j"))


def test_a_message_whose_record_is_damaged_is_acknowledged(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    client.set(f"{namespace}:job:j", "not a record")
    client.lpush(queue, "m")
    claims = make_claims("w")
    assert claims.ack(_claim(claims, queue).tag, f"{namespace}:job:j")
    assert not client.exists(claims.key, queue)


def test_a_postponed_message_returns_uncounted_until_its_time_is_over(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    client.lpush(queue, "m")
    client.hset(f"{namespace}:job:j", "state", "queued")
    claims, delayed = make_claims("w"), f"{namespace}:later"
    started = time.time()
    claimed = _claim(claims, queue)
    assert claims.postpone(claimed, f"{namespace}:job:j")
    assert not claims.holds(claimed.tag)
    [entry] = client.zrange(delayed, 0, -1)
    pause = (client.zscore(delayed, str(entry)) or 0) - started
    assert 3 < pause < 8 + time.time() - started
    retry_at = float(client.hget(f"{namespace}:job:j", "retry_at") or 0)
    assert retry_at == client.zscore(delayed, str(entry))
    [postponed] = client.keys(f"{namespace}:postponed:*")
    for first, pause_s in ((started - 20, 20), (started - 2000, 60), (started - 3570, 30)):
        client.set(postponed, first)
        client.zadd(delayed, {str(entry): 1})
        JobRecords(client, namespace, 3600).requeue_due()
        claimed = _claim(claims, queue)
        assert claimed.deliveries == 1
        assert claims.postpone(claimed, f"{namespace}:job:j")
        pause = (client.zscore(delayed, str(entry)) or 0) - time.time()
        assert abs(pause - pause_s) < 5 + time.time() - started
        assert client.ttl(postponed) > 7000
    client.set(postponed, started - 3601)
    client.zadd(delayed, {str(entry): 1})
    JobRecords(client, namespace, 3600).requeue_due()
    claimed = _claim(claims, queue)
    assert not claims.postpone(claimed, f"{namespace}:job:j")
    assert claims.holds(claimed.tag)
    assert not client.exists(postponed)


def test_a_message_of_a_deleted_job_is_not_postponed_and_delays_no_other_job(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    client.lpush(queue, "m", "n")
    record = f"{namespace}:job:j"
    client.hset(record, mapping={"state": "queued", "request": "{}"})
    claims = make_claims("w")
    first, second = _claim(claims, queue), _claim(claims, queue)
    assert not claims.postpone(first, record, "0" * 40)
    assert claims.holds(first.tag)
    claims.delay_queued(second.tag, 60, record, "0" * 40)
    assert not client.hexists(record, "retry_at")
    assert claims.postpone(first, record, hashlib.sha1(b"{}").hexdigest())
    assert client.hexists(record, "retry_at")


def test_only_answers_that_were_lost_in_a_row_are_counted(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    client.lpush(queue, "m")
    claims, deliveries = make_claims("w"), f"{namespace}:deliveries"
    script = claims._claim._script

    def refused(**_: Any) -> None:
        raise redis.ConnectionError("Connection refused")

    def lost(**call: Any) -> None:
        script(**call)
        raise redis.ConnectionError("Connection closed by server")

    def fail(how: Any) -> None:
        claims._claim._script = how
        with pytest.raises(redis.ConnectionError):
            _claim(claims, queue)
        claims._claim._script = script

    fail(lost)
    fail(refused)
    fail(refused)
    assert claims.requeue_orphans() == 1
    assert not client.exists(deliveries)
    fail(lost)
    assert claims.requeue_orphans() == 1
    assert client.hvals(deliveries) == ["1"]
    claims.requeue(_claim(claims, queue).tag)
    fail(lost)
    assert claims.requeue_orphans() == 1
    assert client.hvals(deliveries) == ["1"], "an answer came in between"


@pytest.mark.parametrize("tag", ["", "no number", "nan", "inf", "9e999", "1." + "0" * 400])
def test_a_claim_under_a_damaged_tag_is_requeued(
    make_claims: MakeClaims, client: redis.Redis, queue: str, tag: str
) -> None:
    claims = make_claims("w")
    client.hset(claims.key, mapping={tag: f"{queue}\0a", "1.000000": f"{queue}\0b"})
    assert claims.requeue_orphans() == 2
    assert client.lrange(queue, 0, -1) == ["b", "a"]
    assert not client.exists(claims.key)


@pytest.mark.parametrize("how", ["requeue", "reclaim", "delay"])
def test_a_key_that_became_no_list_costs_no_message(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str, how: str
) -> None:
    broken = f"{queue}2"
    client.lpush(queue, "1", "3")
    client.lpush(broken, "2", "4")
    claims = make_claims("w")
    tags = [_claim(claims, each).tag for each in (queue, broken, queue, broken)]
    client.set(broken, "no list")
    if how == "requeue":
        claims.requeue(*reversed(tags))
    elif how == "reclaim":
        client.zadd(f"{namespace}:leases", {"w": 1})
        assert make_claims("other").lease.reclaim_expired() == [("w", 4)]
    else:
        for tag in tags:
            claims.delay(tag, time.time() + 30 + float(tag))
        for entry in client.zrange(f"{namespace}:later", 0, -1):
            client.zincrby(f"{namespace}:later", -100, str(entry))
        assert JobRecords(client, namespace, 3600).requeue_due() == 4
    assert client.lrange(queue, 0, -1) == ["3", "1"]
    assert client.lrange(broken, 0, -1) == ["4", "2"]
    assert client.get(f"{broken}:no-list") == "no list"
    assert not client.exists(claims.key, f"{namespace}:later")


def test_a_job_is_accepted_though_its_queue_is_no_list(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    queue = f"{namespace}.default.native"
    client.set(queue, "no list")
    JobRecords(client, namespace, 3600).submit([("j", JobRequest(prompt="a", priority=0))])
    assert '"j"' in _claim(make_claims("w"), queue).message


def test_a_claim_whose_answer_got_lost_is_counted(
    make_claims: MakeClaims, client: redis.Redis, queue: str
) -> None:
    client.lpush(queue, "m")
    claims = make_claims("w")
    claims.abandon([_claim(claims, queue).tag])
    assert claims.requeue_orphans() == 1
    assert _claim(claims, queue).deliveries == 2


def test_a_message_that_is_too_long_is_claimed_cut_and_requeued_whole(
    client: redis.Redis, namespace: str, queue: str
) -> None:
    claims = Claims(
        no_retry_client=client,
        retrying_client=client,
        namespace=namespace,
        worker="w",
        lease_s=60,
        max_message_bytes=1000,
    )
    claims.lease.acquire()
    client.lpush(queue, "m" * 1000, "n" * 1001)
    fitting, long = _claim(claims, queue), _claim(claims, queue)
    assert (fitting.too_long, fitting.message) == (False, "m" * 1000)
    assert (long.too_long, long.message) == (True, "n" * 1000)
    claims.requeue(long.tag)
    assert client.lrange(queue, 0, -1) == ["n" * 1001]


def _keeper(claims: Claims, client: redis.Redis, namespace: str, **more: Any) -> LeaseKeeper:
    keeper = LeaseKeeper(claims, JobRecords(client, namespace, 3600), 2, lambda: None, **more)
    keeper._reclaim_from = 0.0
    return keeper


def test_a_claim_that_nothing_attends_to_is_requeued_counted_after_a_lease(
    make_claims: MakeClaims,
    client: redis.Redis,
    namespace: str,
    queue: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.lpush(queue, "attended", "forgotten")
    claims = make_claims("w")
    attended, forgotten = _claim(claims, queue), _claim(claims, queue)
    keeper = _keeper(claims, client, namespace, attended_tags=lambda: {attended.tag})
    keeper.heartbeat()
    assert claims.holds(forgotten.tag)
    later = time.monotonic() + 2
    monkeypatch.setattr(time, "monotonic", lambda: later)
    keeper.heartbeat()
    assert client.lrange(queue, 0, -1) == ["forgotten"]
    assert client.hkeys(claims.key) == [attended.tag]
    assert _claim(claims, queue).deliveries == 2


def test_a_lease_far_ahead_of_the_clock_is_shortened_to_its_length(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    leases = f"{namespace}:leases"
    client.lpush(queue, "m")
    dead = make_claims("dead", lease_s=60)
    _claim(dead, queue)
    client.zadd(leases, {"dead": time.time() + 8 * 3600})  # the clock was set back by 8 h since
    other = make_claims("other", lease_s=60)
    assert other.lease.reclaim_expired() == []
    assert (client.zscore(leases, "dead") or 0) < time.time() + 61
    client.zadd(leases, {"dead": time.time() - 1})
    assert other.lease.reclaim_expired() == [("dead", 1)]
    assert client.hkeys(f"{leases}:lengths") == ["other"]


def test_a_lease_that_is_longer_than_those_of_others_is_left_alone(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    leases = f"{namespace}:leases"
    make_claims("patient", lease_s=600)
    client.zadd(leases, {"of release 0.1.0": (old := time.time() + 3000)})
    before = client.zscore(leases, "patient")
    make_claims("hasty", lease_s=2).lease.reclaim_expired()
    assert client.zscore(leases, "patient") == before
    assert client.zscore(leases, "of release 0.1.0") == old


def test_an_outage_is_told_from_an_error_that_one_message_causes(
    own_redis: LocalRedisServer,
) -> None:
    client = connect(own_redis.url, retries=0)
    client.set("text", "a")

    def error_of(*command: Any) -> Exception:
        with pytest.raises(redis.RedisError) as raised:
            client.execute_command(*command)
        return raised.value

    assert not is_outage(error_of("HGET", "text", "a"))
    assert not is_outage(error_of("SET", "a", {}))
    assert not is_outage(error_of("EVAL", "return redis.call('HGET', 'text', 'a')", 0))
    assert not is_outage(UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"))
    client.execute_command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "+auth", "+eval")
    client.execute_command("AUTH", "limited", "")
    assert is_outage(error_of("GET", "a"))
    assert is_outage(error_of("EVAL", "return redis.call('GET', 'a')", 0))
    own_redis.kill()
    assert is_outage(error_of("GET", "a"))


def test_a_key_of_another_type_in_place_of_the_claims_costs_no_message(
    make_claims: MakeClaims, client: redis.Redis, queue: str
) -> None:
    claims = make_claims("w")
    client.set(claims.key, "no hash")
    client.lpush(queue, "m")
    assert _claim(claims, queue).message == "m"
    assert client.hlen(claims.key) == 1
    assert client.get(f"{claims.key}:no-hash") == "no hash"


def test_the_jobs_without_a_tenant_have_a_weight_too(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, queue: str
) -> None:
    Tenants(Lanes.single(client, namespace)).set_weight("", 3)
    client.sadd(known_queues_key(namespace), f"{queue}@free")
    client.lpush(queue, *["plain"] * 80)
    client.lpush(f"{queue}@free", *["free"] * 80)
    claims, group = make_claims("w"), QueueGroup(name="64x64", queues=(queue,))
    served = [each.message for _ in range(10) for each in claims.claim([group], 8)]
    assert (served.count("plain"), served.count("free")) == (60, 20)

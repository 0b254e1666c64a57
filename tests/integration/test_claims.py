"""Claims on a real Redis: claimed in one call, fenced by their worker, requeued by others."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from imagefleet.shared.errors import LeaseLost
from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.worker.queues.claim_types import Claimed, QueueGroup
from imagefleet.worker.queues.claims import Claims
from tests.integration.conftest import MakeClaims
from tests.support.processes import until
from tests.support.redis import TcpServer


@pytest.fixture
def group(namespace: str) -> list[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",))]


def _push(client: redis.Redis, group: QueueGroup, *messages: str, priority: int = 0) -> None:
    for message in messages:
        client.lpush(list_key(group.queues[0], priority), message)


def _texts(claimed: Sequence[Claimed]) -> list[str]:
    return [message.message for message in claimed]


def test_messages_are_claimed_in_order_and_no_more_than_wanted(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *"abcd")
    claims = make_claims("w")
    assert _texts(claims.claim(group, 3)) == ["a", "b", "c"]
    assert _texts(claims.claim(group, 3)) == ["d"]
    assert claims.claim(group, 3) == []


def test_higher_priorities_are_claimed_first(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], "low", priority=9)
    _push(client, group[0], "middle", priority=3)
    _push(client, group[0], "high", priority=0)
    assert _texts(make_claims("w").claim(group, 8)) == ["high", "middle", "low"]


def test_one_claim_takes_one_compile_key_from_all_its_queues_in_turn(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    small = QueueGroup(name="64x64", queues=(f"{namespace}.a", f"{namespace}.b"))
    wide = QueueGroup(name="64x128", queues=(f"{namespace}.wide",))
    client.lpush(f"{namespace}.a", "a1", "a2")
    client.lpush(f"{namespace}.b", "b1", "b2")
    client.lpush(f"{namespace}.wide", "w1", "w2")
    claims = make_claims("w")
    batches = [_texts(claims.claim([small, wide], 8)) for _ in range(3)]
    assert sorted(batches, key=len) == [[], ["w1", "w2"], ["a1", "b1", "a2", "b2"]]


def test_a_queue_that_the_first_message_emptied_is_not_read_again(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    groups = [QueueGroup(name=name, queues=(f"{namespace}.{name}",)) for name in ("x", "y")]
    for queue, tenant in (("x", "a"), ("x", "b"), ("y", "c")):
        client.lpush(_add_tenant_queue(client, namespace, queue, tenant), tenant)
    claims = make_claims("w")
    assert [_texts(claims.claim(groups, 8)) for _ in range(3)] == [["a", "b"], ["c"], []]


def test_compile_keys_take_turns_inside_a_level(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    groups = [QueueGroup(name=name, queues=(f"{namespace}.{name}",)) for name in ("x", "y")]
    for _ in range(4):
        client.lpush(f"{namespace}.x", "x")
        client.lpush(f"{namespace}.y", "y")
    claims = make_claims("w")
    assert sorted(_texts(claims.claim(groups, 1))[0] for _ in range(8)) == list("xxxxyyyy")


def _add_tenant_queue(client: redis.Redis, namespace: str, queue: str, tenant: str) -> str:
    name = f"{namespace}.{queue}@{tenant}"
    client.sadd(known_queues_key(namespace), name)
    return name


def test_an_empty_queue_of_a_tenant_is_unknown_until_a_message_is_requeued(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    queue = _add_tenant_queue(client, namespace, "q", "gold")
    client.lpush(list_key(queue, 6), "a")
    claims, other = make_claims("w"), make_claims("other")
    [message] = claims.claim(group, 8)
    assert other.claim(group, 8) == []
    assert not client.exists(known_queues_key(namespace))
    claims.requeue(message.tag)
    assert _texts(other.claim(group, 8)) == ["a"]
    assert claims.claim(group, 8) == []
    assert other.lease.release_all() == 1
    assert _texts(claims.claim(group, 8)) == ["a"]


def test_a_claim_counts_images_and_does_not_split_its_last_message(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    three, five = '{"headers": {"images": 3}}', '{"headers":{"images":5}}'
    _push(client, group[0], three, three, five, "one", "one")
    claims = make_claims("w")
    assert _texts(claims.claim(group, 8)) == [three, three, five]
    assert _texts(claims.claim(group, 8, max_messages=1)) == ["one"]


def _with_steps(*steps: int) -> list[str]:
    """Return messages as plain Celery writes them, in order of arrival."""
    return [f'{{"id": {at}, "headers": {{"steps": {each}}}}}' for at, each in enumerate(steps)]


def _steps(claimed: Sequence[Claimed]) -> list[int]:
    return [json.loads(each.message)["headers"]["steps"] for each in claimed]


def test_a_batch_takes_the_head_and_then_jobs_of_like_step_counts(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *_with_steps(20, 50, 20, 4, 20, 50, 20, 4))
    claims = make_claims("w")
    assert [_steps(claims.claim(group, 4)) for _ in range(3)] == [[20] * 4, [50, 50, 4, 4], []]


def test_jobs_that_do_not_lengthen_the_batch_come_first(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *_with_steps(20, 21, 4, 19, 30))
    assert _steps(make_claims("w").claim(group, 4)) == [20, 19, 4, 21]


def test_passed_over_jobs_keep_their_order_and_each_batch_takes_the_first(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    unlike = [50 + at for at in range(6)]
    _push(client, group[0], *_with_steps(4, *unlike), *_with_steps(*[4] * 100))
    claims = make_claims("w")
    batches = [_steps(claims.claim(group, 4)) for _ in range(7)]
    assert batches[0] == [4, 4, 4, 4]
    assert [batch[0] for batch in batches[1:]] == unlike


def test_a_claim_reads_four_times_as_many_messages_as_wanted(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *_with_steps(4, *[50] * 8, 4))
    assert _steps(make_claims("w").claim(group, 2)) == [4, 50]


@pytest.mark.parametrize(("tenants", "found"), [(64, {4: 128}), (74, {4: 74, 50: 74})])
def test_a_claim_reads_at_most_512_messages(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    namespace: str,
    tenants: int,
    found: dict[int, int],
) -> None:
    eighth_is_alike = _with_steps(*[50] * 7, 4, *[50] * 40)
    for tenant in range(tenants):
        queue = _add_tenant_queue(client, namespace, "q", f"{tenant}")
        client.lpush(queue, *_with_steps(4), *eighth_is_alike)
    taken = make_claims("w").claim(group, 2 * tenants)
    assert Counter(_steps(taken)) == found


def test_the_longest_job_of_any_tenant_decides_what_joins_the_batch(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    client.lpush(_add_tenant_queue(client, namespace, "q", "a"), *_with_steps(20, 19, 18, 26, 27))
    client.lpush(_add_tenant_queue(client, namespace, "q", "b"), *_with_steps(20, 26, 30))
    taken = _steps(make_claims("w").claim(group, 6))
    assert taken == [20, 20, 19, 26, 26, 30]


def test_step_affinity_overtakes_no_higher_priority(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *_with_steps(4, 50, 50), priority=0)
    _push(client, group[0], *_with_steps(50, 4, 4), priority=9)
    claims = make_claims("w")
    assert _steps(claims.claim(group, 2)) == [4, 50]
    assert _steps(claims.claim(group, 3)) == [50, 50, 4], "the head of each level goes first"


def test_step_affinity_does_not_change_the_turns_of_tenants(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    short, long = _with_steps(*[4] * 40), _with_steps(*[50] * 40)
    client.lpush(_add_tenant_queue(client, namespace, "q", "short"), *short)
    client.lpush(_add_tenant_queue(client, namespace, "q", "long"), *long)
    claims = make_claims("w")
    assert [Counter(_steps(claims.claim(group, 8))) for _ in range(10)] == [{4: 4, 50: 4}] * 10


def test_a_message_without_steps_counts_with_the_default_steps(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    fifty, twenty = _with_steps(50, 20)
    _push(client, group[0], "plain", fifty, twenty, "plain too")
    taken = _texts(make_claims("w").claim(group, 3, default_steps=20))
    assert taken == ["plain", twenty, "plain too"]


def test_the_steps_of_waiting_jobs_decide_what_joins_them(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *_with_steps(4, 4, 50, 50))
    assert _steps(make_claims("w").claim(group, 3, batch_steps=50)) == [4, 50, 50]


@pytest.mark.parametrize("separators", [None, (",", ":")])
def test_a_value_equal_to_a_header_name_does_not_hide_the_header(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    separators: tuple[str, str] | None,
) -> None:
    def message(name: str, steps: int, images: int = 1) -> str:
        headers = {"id": name, "steps": steps, "images": images}
        return json.dumps({"headers": headers}, separators=separators)

    messages = message("a", 4), message("b", 10), message("steps", 4), message("images", 10, 6)
    _push(client, group[0], *messages)
    claims = make_claims("w")
    first, second, third, fourth = messages
    assert _texts(claims.claim(group, 2, default_steps=28)) == [first, third]
    _push(client, group[0], message("c", 10))
    assert _texts(claims.claim(group, 7)) == [second, fourth]


def test_step_affinity_neither_loses_nor_duplicates_messages(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    rng = random.Random(1)
    messages = _with_steps(*(rng.choice([4, 20, 50]) for _ in range(300)))
    _push(client, group[0], *messages, *["the same twice"] * 2)
    claims, taken = make_claims("w"), []
    while claimed := claims.claim(group, rng.choice([1, 3, 8])):
        back = [each for each in claimed if rng.random() < 0.2]
        for each in reversed(back):
            claims.requeue(each.tag)
        taken += [each.message for each in claimed if each not in back]
    assert Counter(taken) == Counter([*messages, "the same twice", "the same twice"])


def test_absurd_numbers_in_headers_do_not_break_a_claim(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    absurd = [f'{{"id": {at}, "steps": {10**400}, "images": {10**400}}}' for at in range(3)]
    _push(client, group[0], *absurd, "plain", absurd[0], "plain", absurd[1])
    claims = make_claims("w")
    while claimed := claims.claim(group, 10**9, max_messages=3):
        for message in claimed:
            claims.ack(message.tag)
    assert not client.exists(group[0].queues[0])


def _make_suspect(client: redis.Redis, claims: Claims, group: QueueGroup, message: str) -> None:
    """Push a message, and count two deaths of workers for it. The queue must be empty."""
    _push(client, group, message)
    for _ in range(2):
        claims.requeue(claims.claim([group], 1)[0].tag, counted=True)


def test_a_suspect_within_the_window_is_claimed_alone_later(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    ordinary, unlike, suspect = _with_steps(4, 50, 4)
    claims = make_claims("w")
    _make_suspect(client, claims, group[0], suspect)
    client.rpush(group[0].queues[0], unlike, ordinary)  # before the suspect
    taken = claims.claim(group, 8, suspect_from=3)
    assert _texts(taken) == [ordinary, unlike]
    assert claims.claim(group, 8, suspect_from=3) == [], "the worker holds other messages"
    for each in taken:
        claims.ack(each.tag)
    assert _texts(claims.claim(group, 8, suspect_from=3)) == [suspect]


def test_a_suspect_with_like_steps_neither_ends_the_batch_nor_overtakes_jobs(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    suspect, *others = _with_steps(4, 4, 50, 50, 4, 4, 50)
    claims = make_claims("w")
    _make_suspect(client, claims, group[0], suspect)
    client.delete(group[0].queues[0])
    first, second, third, fourth, fifth, last = others
    _push(client, group[0], first, second, third, suspect, fourth, fifth, last)
    batches = []
    while client.exists(group[0].queues[0]):
        taken = claims.claim(group, 3, suspect_from=3)
        batches.append(_texts(taken))
        for each in taken:
            claims.ack(each.tag)
    assert batches == [[first, fourth, fifth], [second, third, last], [suspect]]


def test_a_tenants_compile_keys_take_turns_while_other_tenants_are_served(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    groups = [QueueGroup(name=name, queues=(f"{namespace}.{name}",)) for name in ("x", "y")]
    for name in ("x", "y"):
        client.lpush(_add_tenant_queue(client, namespace, name, "gold"), *[name] * 10)
    client.lpush(_add_tenant_queue(client, namespace, "x", "free"), *["free"] * 20)
    claims = make_claims("w")
    turns = [_texts(claims.claim(groups, 1))[0] for _ in range(40)]
    assert [turn for turn in turns if turn != "free"] == ["x", "y"] * 10


def test_the_state_of_absent_tenants_is_forgotten(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    claims = make_claims("w")

    def serve(*tenants: str) -> None:
        for tenant in tenants:
            client.lpush(_add_tenant_queue(client, namespace, "q", tenant), tenant)
            for message in claims.claim(group, 8):
                claims.ack(message.tag)
        claims.claim(group, 8)

    serve("a")
    few = claims._claim.state_length()
    serve(*(f"tenant-{number}" for number in range(50)), "a")
    assert claims._claim.state_length() <= few + 10  # its numbers may have more digits


def test_an_acknowledged_message_never_returns(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], "a")
    claims = make_claims("w")
    [message] = claims.claim(group, 1)
    assert claims.ack(message.tag)
    assert not claims.ack(message.tag)
    assert claims.lease.release_all() == 0
    assert make_claims("v").claim(group, 1) == []


@pytest.mark.parametrize("shard", ["", "7"])
@pytest.mark.parametrize(
    ("state", "attempt", "goes_back"),
    [
        ("queued", "", True),  # the server lost the start of the attempt too
        ("running", "this one's", True),
        ("running", "another's", False),  # that attempt has its own message
        ("succeeded", "this one's", False),
        (None, "", False),  # the record expired
    ],
)
def test_a_message_with_an_open_record_is_requeued_instead_of_acknowledged(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    namespace: str,
    state: str | None,
    attempt: str,
    goes_back: bool,
    shard: str,
) -> None:
    _push(client, group[0], "a")
    claims, record = make_claims("w"), f"{namespace}:job:j"
    [claimed] = claims.claim(group, 1)
    if state is not None:
        holder = claimed.attempt if attempt == "this one's" else attempt
        job, of_shard = {"state": state, "attempt": holder}, {shard: f"{state}|{holder}|w|0|0|1"}
        client.hset(record, mapping={str(k): v for k, v in (of_shard if shard else job).items()})
    assert claims.ack(claimed.tag, record, shard=shard)
    assert not claims.holds(claimed.tag)
    assert not client.exists(claims.key)
    assert _texts(claims.claim(group, 1)) == (["a"] if goes_back else [])


def test_messages_of_a_dead_worker_return_to_the_head_in_order_and_counted(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _push(client, group[0], *"abc")
    dead = make_claims("dead")
    dead.claim(group, 2)
    client.zadd(f"{namespace}:leases", {"dead": time.time() - 1})
    other = make_claims("other")
    assert other.lease.reclaim_expired() == [("dead", 2)]
    assert other.lease.reclaim_expired() == []
    again = other.claim(group, 8)
    assert [(message.message, message.deliveries) for message in again] == [
        ("a", 2),
        ("b", 2),
        ("c", 1),
    ]


def test_a_worker_without_a_lease_can_neither_acknowledge_nor_claim(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _push(client, group[0], "a", "b")
    frozen, other = make_claims("frozen"), make_claims("other")
    [message] = frozen.claim(group, 1)
    client.zadd(f"{namespace}:leases", {"frozen": time.time() - 1})
    other.lease.reclaim_expired()
    assert not frozen.ack(message.tag)
    assert not frozen.lease.renew()
    with pytest.raises(LeaseLost):
        frozen.claim(group, 1)
    assert _texts(other.claim(group, 8)) == ["a", "b"]


def test_messages_of_a_living_worker_are_never_reclaimed(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], "a")
    alive, other = make_claims("alive"), make_claims("other")
    alive.claim(group, 1)
    assert other.lease.reclaim_expired() == []
    assert alive.lease.renew()


def test_release_all_requeues_every_message_uncounted(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], *"ab")
    leaving = make_claims("leaving")
    leaving.claim(group, 2)
    assert leaving.lease.release_all() == 2
    again = make_claims("other").claim(group, 2)
    assert [(message.message, message.deliveries) for message in again] == [("a", 1), ("b", 1)]


def test_a_claim_whose_answer_got_lost_is_requeued(
    make_claims: MakeClaims,
    client: redis.Redis,
    group: list[QueueGroup],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _push(client, group[0], *"abc")
    claims = make_claims("w")
    held = claims.claim(group, 1)
    run_script = claims._claim.run

    def answer_lost(*args: Any, bulk: bool) -> None:
        run_script(*args, bulk=bulk)
        raise redis.ConnectionError("gone after the server had done it")

    monkeypatch.setattr(claims._claim, "run", answer_lost)
    with pytest.raises(redis.ConnectionError):
        claims.claim(group, 1)
    monkeypatch.setattr(claims._claim, "run", run_script)
    assert claims.requeue_orphans() == 1
    assert _texts(held + claims.claim(group, 8)) == ["a", "b", "c"]
    assert claims.requeue_orphans() == 0


def test_a_claim_that_a_failover_restored_after_its_ack_is_requeued(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup]
) -> None:
    _push(client, group[0], "a")
    claims = make_claims("w")
    [message] = claims.claim(group, 1)
    kept = client.hgetall(claims.key)
    claims.ack(message.tag)
    client.hset(
        claims.key, mapping={str(k): v for k, v in kept.items()}
    )  # as a failover, or a restart that lost a second, does
    assert claims.requeue_orphans() == 1
    assert _texts(claims.claim(group, 1)) == ["a"]


def test_a_claim_that_a_failover_lost_cannot_acknowledge_a_later_one(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _push(client, group[0], "a")
    claims = make_claims("w")
    before: dict[str, Any] = {key: client.dump(key) for key in client.scan_iter(f"{namespace}*")}
    [first] = claims.claim(group, 1)
    for key in client.scan_iter(f"{namespace}*"):
        client.delete(key)
    for key, value in before.items():
        client.restore(key, 0, value)
    [second] = claims.claim(group, 1)
    assert not claims.ack(first.tag)
    assert claims.find(second.tag) == (second.list_key, "a")


def test_a_delayed_message_is_held_by_no_worker_and_returns_uncounted(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _push(client, group[0], "later", "now")
    claims = make_claims("w")
    later, now = claims.claim(group, 2)
    assert not claims.delay(now.tag, time.time() - 5)
    assert claims.delay(later.tag, time.time() + 3600)
    assert client.hkeys(claims.key) == [now.tag]
    assert not claims.holds(later.tag)
    client.zadd(f"{namespace}:later", {f"{later.list_key}\0later": 1})
    JobRecords(client, namespace, 3600).requeue_due()
    [again] = make_claims("other").claim(group, 8)
    assert (again.message, again.deliveries) == ("later", 1)


def test_a_queue_is_known_again_after_a_requeue(
    make_claims: MakeClaims, client: redis.Redis, group: list[QueueGroup], namespace: str
) -> None:
    _push(client, group[0], "a")
    claims = make_claims("w")
    [message] = claims.claim(group, 8)
    assert claims.claim(group, 8) == []
    claims.requeue(message.tag)
    assert client.smembers(known_queues_key(namespace)) == set(group[0].queues)


def test_a_tenants_queue_that_a_worker_names_is_counted_once(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    gold = _add_tenant_queue(client, namespace, "q", "gold")
    client.lpush(gold, "a", "b")
    groups = [QueueGroup(name="64x64", queues=(f"{namespace}.q", gold))]
    assert _texts(make_claims("w").claim(groups, 8)) == ["a", "b"]


def test_claims_survive_a_killed_redis(own_redis: LocalRedisServer, namespace: str) -> None:
    client = connect(own_redis.url)
    client.lpush("q", "a")
    claims = Claims(
        no_retry_client=client, retrying_client=client, namespace=namespace, worker="w", lease_s=60
    )
    claims.lease.acquire()
    claims.claim([QueueGroup(name="64x64", queues=("q",))], 1)
    own_redis.kill()
    own_redis.start()
    assert claims.lease.renew()
    assert claims.lease.release_all() == 1
    assert client.lrange("q", 0, -1) == ["a"]


def test_a_claim_that_a_busy_redis_did_not_release_is_requeued_later(tmp_path: Path) -> None:
    group = [QueueGroup(name="64x64", queues=("q",))]
    with TcpServer(tmp_path, "--busy-reply-threshold", "10") as server:
        client = server.client()
        claims = Claims(
            no_retry_client=client, retrying_client=client, namespace="n", worker="w", lease_s=60
        )
        claims.lease.acquire()
        _push(client, group[0], "a")
        [claimed] = claims.claim(group, 1)
        loop = threading.Thread(target=_loop_until_killed, args=(server,))
        loop.start()
        until(lambda: _is_refused_as_busy(server.client().ping))
        assert _is_refused_as_busy(lambda: claims.ack(claimed.tag))
        server.client().script_kill()
        loop.join()
        assert claims.requeue_orphans() == 1
        assert _texts(claims.claim(group, 1)) == ["a"]


def test_a_worker_waits_for_a_busy_redis(tmp_path: Path) -> None:
    with TcpServer(tmp_path, "--busy-reply-threshold", "10") as server:
        loop = threading.Thread(target=_loop_until_killed, args=(server,))
        loop.start()
        until(lambda: _is_refused_as_busy(server.client().ping))
        answered = threading.Thread(
            target=connect(f"redis://127.0.0.1:{server.port}", retries=RETRY_FOREVER).ping
        )
        answered.start()
        answered.join(0.3)
        assert answered.is_alive()
        server.client().script_kill()
        answered.join(300)
        assert not answered.is_alive()
        loop.join()


def _loop_until_killed(server: TcpServer) -> None:
    with suppress(redis.ResponseError):
        server.client().eval("while true do end", 0)


def _is_refused_as_busy(act: Callable[[], object]) -> bool:
    try:
        act()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False

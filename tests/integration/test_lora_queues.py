"""A job whose add-ons a worker lacks is moved to a queue that only workers with these serve."""

from collections.abc import Sequence
from typing import cast

import pytest
import redis

from imagefleet.shared.jobs.queues import list_for_add_ons
from imagefleet.shared.jobs.redis_keys import known_queues_key
from imagefleet.worker.queues.claim_types import QueueGroup
from tests.integration.conftest import MakeClaims


def _group(namespace: str, *loras: str) -> Sequence[QueueGroup]:
    return [QueueGroup(name="64x64", queues=(f"{namespace}.q",), add_ons=loras)]


@pytest.mark.parametrize("tenant", ["", "@gold"])
@pytest.mark.parametrize("known_queues", [0, 300])
def test_a_moved_message_is_claimed_by_a_worker_that_holds_all_its_loras(
    make_claims: MakeClaims, client: redis.Redis, namespace: str, tenant: str, known_queues: int
) -> None:
    queues, known = f"{namespace}.q", known_queues_key(namespace)
    for number in range(known_queues):
        client.sadd(known, f"{namespace}.other@t{number}")
    client.sadd(known, f"{queues}{tenant}")
    client.lpush(f"{queues}{tenant}", "a", "b", "c")
    plain, one, both = (make_claims(name) for name in ("plain", "one", "both"))
    for each in plain.claim(_group(namespace), 2):
        plain.move(each.tag, list_for_add_ons(each.list_key, {"style", "detail"}))
    assert plain.held_tags() == set()
    assert [each.message for each in plain.claim(_group(namespace), 8)] == ["c"]
    assert one.claim(_group(namespace, "style"), 8) == []
    held = _group(namespace, "other", "style", "detail")
    claimed = [each for _ in range(20) for each in both.claim(held, 8)]
    assert [each.message for each in claimed] == ["a", "b"]
    assert {each.list_key for each in claimed} == {f"{queues}&detail&style{tenant}"}
    assert {each.deliveries for each in claimed} == {1}
    assert both.requeue(*(each.tag for each in claimed[::-1])) == 2
    assert [each.message for _ in range(20) for each in both.claim(held, 8)] == ["a", "b"]
    for _ in range(20):
        both.claim(held, 8)
    assert not any("&" in name for name in cast(set[str], client.smembers(known)))


def test_a_message_that_is_not_held_any_more_is_not_moved(
    make_claims: MakeClaims, client: redis.Redis, namespace: str
) -> None:
    client.lpush(f"{namespace}.q", "a")
    worker, other = make_claims("w"), make_claims("other")
    [claimed] = worker.claim(_group(namespace), 1)
    worker.requeue(claimed.tag)
    target = list_for_add_ons(claimed.list_key, {"style"})
    worker.move(claimed.tag, target)
    assert client.exists(target) == 0
    assert [each.message for each in other.claim(_group(namespace), 1)] == ["a"]

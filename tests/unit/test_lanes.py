"""Lanes: the id of a job tells where its keys are, and one slot has all keys of a lane."""

import inspect
from collections import Counter

import pytest
from redis import Redis
from redis.crc import key_slot

from imagefleet.shared.bulk import redis_keys as bulk_keys
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs import redis_keys as job_keys
from imagefleet.shared.redis_client.cluster import Address
from imagefleet.shared.redis_client.connection import connect_lanes
from imagefleet.shared.redis_client.lanes import Lane, Lanes, lane_namespace, lane_number
from imagefleet.shared.webhooks import redis_keys as webhook_keys

URL = "redis+cluster://one:7000,two"


def _keys_of(namespace: str) -> list[str]:
    """Return every key that the functions of the three modules of keys name."""
    functions = [
        function
        for module in (job_keys, bulk_keys, webhook_keys)
        for _, function in inspect.getmembers(module, inspect.isfunction)
        if next(iter(inspect.signature(function).parameters)) == "namespace"
    ]
    named = [
        function(namespace, *("1" for _ in list(inspect.signature(function).parameters)[1:]))
        for function in functions
    ]
    return [key for each in named for key in ([each] if isinstance(each, str) else each)]


def test_one_slot_has_every_key_of_a_lane() -> None:
    namespace = lane_namespace("imagefleet", 3)
    keys = _keys_of(namespace)
    assert len(keys) > 30
    assert {key_slot(key.encode()) for key in keys} == {key_slot(namespace.encode())}


@pytest.mark.parametrize("lanes", [8, 16, 32])
def test_masters_with_equal_ranges_of_slots_have_about_equally_many_lanes(lanes: int) -> None:
    slots = [key_slot(lane_namespace("imagefleet", n).encode()) for n in range(lanes)]
    for masters in range(1, lanes // 2 + 1):
        counts = Counter(slot * masters // 16_384 for slot in slots)
        assert len(counts) == masters
        assert max(counts.values()) - min(counts.values()) <= 1


def test_lanes_have_the_same_keys_in_every_release() -> None:
    assert [lane_namespace("n", number) for number in (0, 1, 255)] == [
        "n{0-113}",
        "n{1-175}",
        "n{255-12}",
    ]


def test_an_id_has_the_same_lane_in_every_release() -> None:
    assert [lane_number(name, 8) for name in ("a", "b", "0192f1c2-7a3e", "größer")] == [3, 1, 4, 0]


def test_jobs_are_spread_evenly() -> None:
    counts = Counter(lane_number(f"job-{n}", 8) for n in range(8_000))
    assert len(counts) == 8
    assert max(counts.values()) < 1.15 * min(counts.values())


def test_one_server_has_one_lane_with_the_keys_of_the_fleet() -> None:
    lanes = connect_lanes("redis://localhost:6379/0", "imagefleet", lanes=8)
    assert [lane.namespace for lane in lanes] == ["imagefleet"]
    assert lanes.of("any id") is lanes.first


def test_a_cluster_has_a_client_for_each_lane_and_asks_for_no_server_yet() -> None:
    lanes = connect_lanes(URL, "imagefleet", lanes=3)
    assert [lane.namespace for lane in lanes] == [lane_namespace("imagefleet", n) for n in range(3)]
    assert len({id(lane.client) for lane in lanes}) == 3


def test_answers_of_several_lanes_come_in_the_order_of_the_ids() -> None:
    lanes = Lanes([Lane(number=n, namespace=f"n{n}", client=Redis()) for n in range(4)])
    ids = [f"job-{n}" for n in range(20)]
    asked: list[int] = []

    def ask(lane: Lane, own: list[str]) -> list[tuple[int, str]]:
        asked.append(lane.number)
        return [(lane.number, each) for each in own]

    answers = lanes.answer_each(ids, str, ask)
    assert answers == [(lanes.of(each).number, each) for each in ids]
    assert sorted(asked) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        (URL, (("one", 7000), ("two", 6379))),
        ("rediss+cluster://[::1]:7001", (("::1", 7001),)),
        ("redis+cluster://:secret@one:7000?socket_timeout=3", (("one", 7000),)),
    ],
)
def test_an_address_names_some_servers_of_the_cluster(
    url: str, hosts: tuple[tuple[str, int], ...]
) -> None:
    assert Address.parse(url).hosts == hosts


def test_credentials_are_read_and_not_shown() -> None:
    address = Address.parse("redis+cluster://fleet:p%40ss@one:7000?socket_timeout=3")
    assert address.options == {"username": "fleet", "password": "p@ss", "socket_timeout": 3.0}
    assert "p@ss" not in repr(address)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis+cluster://", "must look like"),
        ("redis+cluster://one:7000/1", "without a path"),
        ("redis+cluster://one:7000?db=1", "unknown option 'db'"),
        ("redis+cluster://one:port", "not the host:port"),
        ("redis+cluster://one:0", "not the host:port"),
    ],
)
def test_a_wrong_address_is_refused_with_what_is_wrong(url: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        connect_lanes(url, "imagefleet")

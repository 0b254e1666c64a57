"""Queues of one compile key make one group, whatever their names; shards have their own groups."""

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.startup.served_queues import queue_groups

INFO = FakeEngine(shapes=[Shape(height=64, width=64), Shape(height=32, width=96)]).info


def _groups(queues: list[str] | None) -> dict[tuple[str, bool], tuple[str, ...]]:
    return {(group.name, group.bulk): group.queues for group in queue_groups(queues, INFO, "ns")}


def test_a_worker_serves_all_queues_of_its_model() -> None:
    jobs = ("ns.default.native", "ns.default.64x64", "ns.fake.native", "ns.fake.64x64")
    wide = ("ns.default.32x96", "ns.fake.32x96")
    assert _groups(None) == {
        ("64x64", False): jobs,
        ("32x96", False): wide,
        ("64x64", True): tuple(name.replace("ns", "ns.bulk") for name in jobs),
        ("32x96", True): tuple(name.replace("ns", "ns.bulk") for name in wide),
    }


def test_named_queues_are_grouped_and_no_others_are_served() -> None:
    named = ["ns.fake.64x64@gold", "elsewhere", "ns.default.native", "ns.bulk.fake.32x96"]
    assert _groups(named) == {
        ("64x64", False): ("ns.fake.64x64@gold", "ns.default.native"),
        ("elsewhere", False): ("elsewhere",),
        ("32x96", True): ("ns.bulk.fake.32x96",),
    }

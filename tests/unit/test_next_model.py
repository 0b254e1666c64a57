"""A worker with several models switches when another model is the more urgent."""

import pytest

from imagefleet.shared.jobs.fleet_status import QueueStatus
from imagefleet.worker.commands.next_model import (
    FirstSeen,
    SwitchPolicy,
    WaitingWork,
    next_model,
    waiting_by_model,
)

POLICY = SwitchPolicy(min_stay_s=60.0, max_wait_s=120.0)
Waiting = dict[str, WaitingWork]


def _jobs(count: int, oldest_s: float) -> WaitingWork:
    return WaitingWork(jobs=count, oldest_s=oldest_s)


def _next(waiting: Waiting, *, stayed_s: float = 60.0, is_idle: bool = False) -> str | None:
    return next_model("a", ["b", "c"], waiting, stayed_s=stayed_s, is_idle=is_idle, policy=POLICY)


@pytest.mark.parametrize(
    ("waiting", "chosen"),
    [
        pytest.param({}, None, id="nothing waits"),
        pytest.param({"a": _jobs(1, 5.0)}, None, id="only its own jobs"),
        pytest.param({"b": _jobs(1, 1.0)}, "b", id="jobs of another and none of its own"),
        pytest.param({"b": _jobs(9, 1.0), "c": _jobs(1, 2.0)}, "c", id="the oldest job decides"),
        pytest.param({"a": _jobs(1, 5.0), "b": _jobs(1, 125.0)}, None, id="not old enough"),
        pytest.param({"a": _jobs(1, 5.0), "b": _jobs(1, 125.1)}, "b", id="old enough"),
        pytest.param({"a": WaitingWork(shards=3), "b": _jobs(1, 0.0)}, "b", id="jobs before rows"),
        pytest.param({"a": _jobs(1, 999.0), "b": _jobs(1, 1.0)}, None, id="its own are older"),
        pytest.param({"d": _jobs(1, 999.0)}, None, id="a model that this worker has not"),
    ],
)
def test_the_waiting_jobs_decide(waiting: Waiting, chosen: str | None) -> None:
    assert _next(waiting) == chosen


def test_a_model_stays_for_a_while() -> None:
    waiting = {"b": _jobs(1, 1_000.0)}
    assert _next(waiting, stayed_s=59.9) is None
    assert _next(waiting, stayed_s=60.0) == "b"


def test_only_an_idle_worker_switches_for_a_dataset() -> None:
    waiting = {"b": WaitingWork(shards=1), "c": WaitingWork(shards=2)}
    assert _next(waiting) is None
    assert _next(waiting, is_idle=True) == "c"
    assert _next({**waiting, "a": WaitingWork(shards=1)}, is_idle=True) is None


def test_queues_are_added_up_and_jobs_without_a_model_count_for_the_default() -> None:
    queues = [
        _queue("default", waiting=2, oldest_s=7.0),
        _queue("a", waiting=1, oldest_s=9.0),
        _queue("a", waiting=4, oldest_s=None, datasets=True),
        _queue("b", waiting=1, oldest_s=None),
    ]
    assert waiting_by_model(queues, "a", {}) == {
        "a": WaitingWork(jobs=3, oldest_s=9.0, shards=4),
        "b": WaitingWork(jobs=1),
    }


def test_jobs_of_a_shape_that_this_worker_does_not_make_do_not_count() -> None:
    queues = [
        _queue("a", waiting=1, oldest_s=9.0, shape="64x64"),
        _queue("a", waiting=2, oldest_s=99.0, shape="96x96"),
        _queue("c", waiting=2, oldest_s=99.0, shape="64x64"),
    ]
    found = waiting_by_model(queues, "a", {"a": ("64x64",)})
    assert found == {"a": WaitingWork(jobs=1, oldest_s=9.0)}


def test_an_idle_worker_does_not_stay_for_jobs_that_it_cannot_make() -> None:
    waiting = {"a": _jobs(1, 999.0), "b": _jobs(1, 1.0)}
    assert _next(waiting, is_idle=True) == "b"


def _chosen(first_seen: FirstSeen, queues: list[QueueStatus], now: float) -> str | None:
    return _next(waiting_by_model(first_seen.add_ages(queues, {"a"}, now), "a", {}))


def test_jobs_without_an_age_wait_since_they_were_first_seen() -> None:
    first_seen = FirstSeen()
    queues = [_queue("a", waiting=1, oldest_s=None), _queue("b", waiting=1, oldest_s=None)]
    assert _chosen(first_seen, queues, 1000.0) is None
    assert _chosen(first_seen, queues, 1120.0) is None
    assert _chosen(first_seen, queues, 1120.5) == "b"


def test_an_empty_queue_begins_anew() -> None:
    first_seen = FirstSeen()
    own, other = _queue("a", waiting=1, oldest_s=None), _queue("b", waiting=1, oldest_s=None)
    assert _chosen(first_seen, [own, other], 1000.0) is None
    assert _chosen(first_seen, [own], 1100.0) is None
    assert _chosen(first_seen, [own, other], 1200.0) is None
    assert _chosen(first_seen, [own, other], 1320.5) == "b"


def test_only_unknown_ages_of_jobs_are_added() -> None:
    queues = [
        _queue("a", waiting=1, oldest_s=None),
        _queue("b", waiting=1, oldest_s=7.0),
        _queue("c", waiting=1, oldest_s=None, datasets=True),
    ]
    first_seen = FirstSeen()
    for now in (1000.0, 2000.0):
        assert first_seen.add_ages(queues, {"a"}, now) == queues


def _queue(
    model: str,
    *,
    waiting: int,
    oldest_s: float | None,
    datasets: bool = False,
    shape: str = "native",
) -> QueueStatus:
    return QueueStatus(
        model=model,
        shape=shape,
        datasets=datasets,
        waiting=waiting,
        tenants=1,
        oldest_s=oldest_s,
    )

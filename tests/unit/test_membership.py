"""What differs between workers, from what they say of themselves."""

import pytest

from imagefleet.shared.jobs.membership import (
    differing_hosts,
    folder_warning,
    refusal,
    shared_folders,
)
from imagefleet.shared.jobs.worker_status import Member, Trait, WorkerState, WorkerStatus
from imagefleet.worker.startup.served_queues import holds_default_jobs


def _worker(
    name: str,
    model: str = "m",
    *,
    shapes: str = "64x64 8x8 9x9",
    started: float = 0,
    **member: object,
) -> WorkerStatus:
    values = {"serves_default": True, "digest": "d", "store": "s3://b/", **member}
    return WorkerStatus(
        worker=name,
        state=WorkerState.READY,
        model=model,
        shapes=tuple(shapes.split()),
        started_at=started,
        member=Member.model_validate(values),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "what"),
    [
        (_worker("a"), _worker("b"), None),
        (_worker("a", "n"), _worker("b"), "model"),
        (_worker("a", "n", serves_default=False), _worker("b"), None),
        (_worker("a"), _worker("b", "n", serves_default=False), None),
        (_worker("a", digest="e"), _worker("b"), "digest"),
        (_worker("a", digest=""), _worker("b"), None),
        (_worker("a", "n", digest="e", serves_default=False), _worker("b"), None),
        (_worker("a", store="s3://c/"), _worker("b"), "store"),
        (_worker("a", shapes="64x64 9x9 8x8"), _worker("b"), None),
        (_worker("a", shapes="8x8 64x64 9x9"), _worker("b"), "shapes"),
        (_worker("a", shapes="64x64"), _worker("b"), None),
        (_worker("a", shapes="64x64 32x32"), _worker("b"), None),
        (_worker("a", store="x"), _worker("b", may_differ=["store"]), None),
        (_worker("a", store="x", may_differ=["store"]), _worker("b"), None),
        (_worker("a", "n", store="x", may_differ=["store"]), _worker("b"), "model"),
        (_worker("a", "n"), _worker("b").model_copy(update={"member": None}), None),
    ],
)
def test_a_refusal_names_what_to_allow(
    ours: WorkerStatus, theirs: WorkerStatus, what: str | None
) -> None:
    sentence = refusal(ours, [theirs], "fleet")
    if what is None:
        assert sentence is None
    else:
        assert sentence is not None
        assert f"set IMAGEFLEET_MAY_DIFFER={what} on" in sentence
        assert "\n" not in sentence


def test_those_differ_that_have_what_fewer_have() -> None:
    workers = [_worker("a"), _worker("b", store="x"), _worker("c")]
    [found] = differing_hosts(workers)
    assert (found.worker, found.trait, found.value) == ("b", Trait.STORE, "x")
    assert (found.usual, found.usual_workers, found.allowed) == ("s3://b/", 2, False)
    assert str(found) == "the store of worker b is x, and that of 2 workers is s3://b/"


def test_of_values_that_equally_many_have_the_older_is_usual() -> None:
    workers = [_worker("a", "new", started=9, may_differ=["model"]), _worker("b", "old", started=1)]
    [found] = differing_hosts(workers)
    assert (found.worker, found.trait, found.allowed) == ("a", Trait.MODEL, True)


def test_workers_that_leave_do_not_differ() -> None:
    draining = _worker("b", "n").model_copy(update={"state": WorkerState.DRAINING})
    assert differing_hosts([_worker("a"), draining]) == []


def test_a_folder_that_several_hosts_name_is_noticed() -> None:
    store = "file:///out/"
    workers = [_worker("a:1:x", store=store), _worker("a:2:y", store=store)]
    assert shared_folders(workers) == {}
    found = shared_folders([*workers, _worker("b:1:z", store=store), _worker("c:1:z")])
    assert found == {store: ["a", "b"]}
    assert "2 hosts (a, b) store images in file:///out/" in folder_warning(store, found[store])


@pytest.mark.parametrize(
    ("queues", "holds"),
    [
        (None, True),
        (["ns.default.native"], True),
        (["ns.m.native", "ns.bulk.default.64x64"], True),
        (["ns.m.native", "ns.bulk.m.native"], False),
    ],
)
def test_queues_hold_the_jobs_that_name_no_model(queues: list[str] | None, holds: bool) -> None:
    assert holds_default_jobs(queues, "ns") is holds

"""A host that differs from its fleet does not join it, unless that is allowed."""

import threading
from pathlib import Path

import pytest
import redis

from imagefleet import Client
from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.worker_status import (
    Member,
    WorkerRegistry,
    WorkerState,
    WorkerStatus,
)
from imagefleet.worker.process.exit_codes import ExitCode
from imagefleet.worker.queues.lease import Lease
from imagefleet.worker.startup.join_fleet import FleetJoin
from tests.support.processes import StartWorker, until

OTHER_MODEL = {"IMAGEFLEET_MODEL": "fake:name=other,seconds=0.02"}


def _ready(producer: Client) -> set[str]:
    """Return the models of the workers that are ready."""
    workers = producer.fleet.workers.statuses()
    return {each.model for each in workers if each.state is WorkerState.READY}


def _await_ready(producer: Client, *models: str) -> None:
    until(lambda: _ready(producer) == set(models))


def test_a_host_with_another_model_and_store_is_refused_and_makes_no_job(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start()
    _await_ready(producer, "fake")
    [member] = producer.fleet.workers.statuses()
    stranger = start(**OTHER_MODEL, IMAGEFLEET_STORAGE_URL=f"file://{tmp_path}/out")
    assert stranger.wait() == ExitCode.CONFIG
    [line] = [x for x in stranger.output().splitlines() if x.startswith("imagefleet-worker:")]
    assert (
        f"its model of jobs that name none is other and that of worker {member.worker} is fake; "
        f"its store is file://{tmp_path}/out/ and that of worker {member.worker} is "
        f"file://{tmp_path}/store/; correct IMAGEFLEET_MODEL and IMAGEFLEET_STORAGE_URL, or set "
        "IMAGEFLEET_MAY_DIFFER=model,store on this host to let it join"
    ) in line
    jobs = producer.submit_many([f"prompt {number}" for number in range(20)])
    assert {job.result(timeout=900).model for job in jobs} == {"fake"}
    assert not list((tmp_path / "out").rglob("*.png"))
    assert producer.offers().keys() == {"fake", "default"}
    assert [each.worker for each in producer.fleet.workers.statuses()] == [member.worker]


def test_a_host_that_may_differ_joins_and_others_may_join_it(
    start: StartWorker, producer: Client, tmp_path: Path
) -> None:
    start()
    _await_ready(producer, "fake")
    second = start(
        **OTHER_MODEL,
        IMAGEFLEET_STORAGE_URL=f"file://{tmp_path}/out",
        IMAGEFLEET_MAY_DIFFER="model,store",
    )
    _await_ready(producer, "fake", "other")
    second.await_log("differs from others, as is allowed: its model of jobs")
    third = start()
    third.await_log("ready after")
    assert producer.submit("a", model="other").result(timeout=900).model == "other"


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"IMAGEFLEET_SHAPES": "128x128,64x64"}, "its default shape is 128x128 and that of"),
        ({"IMAGEFLEET_SHAPES": "64x64,128x128"}, None),
        ({**OTHER_MODEL, "IMAGEFLEET_SERVES_DEFAULT": "false"}, None),
        ({"IMAGEFLEET_MAY_DIFFER": "shape"}, "IMAGEFLEET_MAY_DIFFER="),
    ],
)
def test_only_what_must_be_common_is_compared(
    start: StartWorker, producer: Client, more: dict[str, str], refused: str | None
) -> None:
    start()
    _await_ready(producer, "fake")
    worker = start(**more)
    if refused is None:
        worker.await_log("ready after")
    else:
        assert worker.wait() == ExitCode.CONFIG
        assert refused in worker.output()


def test_a_worker_with_queues_of_its_own_model_joins(
    start: StartWorker, producer: Client, namespace: str
) -> None:
    start()
    _await_ready(producer, "fake")
    queues = ["--", "-Q", f"{namespace}.other.native"]
    start("-m", "imagefleet.worker", *queues, **OTHER_MODEL).await_log("ready after")


def test_of_two_strangers_that_start_together_one_joins(
    start: StartWorker, producer: Client
) -> None:
    workers = [start(), start(**OTHER_MODEL)]
    codes = until(lambda: [c for each in workers if (c := each.process.poll()) is not None])
    assert codes == [ExitCode.CONFIG]
    [left] = [each for each in workers if each.process.poll() is None]
    left.await_log("ready after")
    until(lambda: len(_ready(producer)) == 1)


class _Reporter:
    """Reports a worker without an engine."""

    def __init__(self, worker: str, model: str, **member: object) -> None:
        self.joined = False
        self._status = WorkerStatus(
            worker=worker,
            state=WorkerState.READY,
            model=model,
            shapes=("64x64",),
            member=Member.model_validate({"serves_default": True, "digest": "d", **member}),
        )

    def current(self) -> WorkerStatus:
        state = WorkerState.READY if self.joined else WorkerState.JOINING
        return self._status.model_copy(update={"state": state})

    def status(self) -> str:
        return self.current().dump()


def _join(client: redis.Redis, namespace: str, reporter: _Reporter) -> bool:
    """Return whether the worker has joined."""
    lease = Lease(client, namespace, reporter.current().worker, 60)
    registry = WorkerRegistry(client, namespace)
    try:
        FleetJoin(registry, lease, reporter, namespace).join()  # type: ignore[arg-type]
    except ConfigurationError:
        return False
    return True


@pytest.mark.parametrize("number", range(10))
def test_strangers_never_join_together(client: redis.Redis, namespace: str, number: int) -> None:
    together = threading.Barrier(4)
    joined: list[str] = []

    def run(worker: str) -> None:
        together.wait()
        if _join(client, namespace, _Reporter(worker, model=f"model-{worker}")):
            joined.append(worker)

    threads = [threading.Thread(target=run, args=[f"w{each}"]) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=900)
    assert len(joined) == 1
    [member] = WorkerRegistry(client, namespace).statuses()
    assert (member.worker, member.state) == (joined[0], WorkerState.READY)


def test_a_worker_waits_for_one_that_is_joining_and_comes_later_by_name(
    client: redis.Redis, namespace: str
) -> None:
    later = Lease(client, namespace, "z", 60)
    later.acquire(_Reporter("z", model="other").status())
    first = _Reporter("a", model="m")
    thread = threading.Thread(target=_join, args=[client, namespace, first])
    thread.start()
    until(lambda: len(WorkerRegistry(client, namespace).statuses()) == 2)
    assert not first.joined
    later.release_all()
    thread.join(timeout=900)
    assert first.joined


@pytest.mark.parametrize(
    ("change", "joins"),
    [
        ({}, False),
        ({"member": None}, True),
        ({"state": WorkerState.DRAINING}, True),
        ({"state": WorkerState.QUARANTINED}, False),
        ({"member": Member(serves_default=True, may_differ=("model",))}, True),
        ({"member": Member(serves_default=False, digest="e")}, True),
        ({"model": "m", "member": Member(serves_default=True, digest="e")}, False),
        ({"model": "m", "member": Member(serves_default=True, digest="d")}, True),
    ],
)
def test_workers_that_count_are_those_that_say_what_they_have_and_stay(
    client: redis.Redis, namespace: str, change: dict[str, object], joins: bool
) -> None:
    there = _Reporter("there", model="other")
    there.joined = True
    status = there.current().model_copy(update=change)
    Lease(client, namespace, "there", 60).acquire(status.dump())
    assert _join(client, namespace, _Reporter("new", model="m")) is joins


def test_a_worker_that_is_stopped_while_it_joins_keeps_no_other_out(
    client: redis.Redis, namespace: str, start: StartWorker
) -> None:
    later = Lease(client, namespace, "~", 900)  # it never decides, so the worker waits for it
    later.acquire(_Reporter("~", model="other").status())
    worker = start()
    until(lambda: len(WorkerRegistry(client, namespace).statuses()) == 2)
    assert worker.terminate() == 0
    assert [each.worker for each in WorkerRegistry(client, namespace).statuses()] == ["~"]


class _FailingLease(Lease):
    """It cannot be renewed."""

    def renew(self, status: str = "", *, may_rest: bool = False) -> bool:
        raise redis.ResponseError("a script failed")


def test_a_worker_whose_join_fails_keeps_no_other_out(client: redis.Redis, namespace: str) -> None:
    registry = WorkerRegistry(client, namespace)
    lease = _FailingLease(client, namespace, "new", 900)
    reporter = _Reporter("new", model="m")
    with pytest.raises(redis.ResponseError):
        FleetJoin(registry, lease, reporter, namespace).join()  # type: ignore[arg-type]
    assert registry.statuses() == []


@pytest.mark.parametrize(("lease_s", "refused"), [(1, True), (900, False)])
def test_a_worker_whose_lease_ran_out_before_its_first_work_compares_itself_again(
    client: redis.Redis, namespace: str, lease_s: float, refused: bool
) -> None:
    registry = WorkerRegistry(client, namespace)
    lease, reporter = Lease(client, namespace, "new", lease_s), _Reporter("new", model="m")
    fleet = FleetJoin(registry, lease, reporter, namespace)  # type: ignore[arg-type]
    fleet.join()
    if refused:
        until(lease.may_have_expired)
    other = _Reporter("other", model="other")
    other.joined = True
    Lease(client, namespace, "other", 900).acquire(other.status())
    if refused:
        with pytest.raises(ConfigurationError, match="differs from the fleet"):
            fleet.join_again_if_expired()
    else:
        fleet.join_again_if_expired()
    assert reporter.joined is not refused


def test_a_worker_whose_lease_expired_does_not_keep_others_out(
    client: redis.Redis, namespace: str
) -> None:
    Lease(client, namespace, "gone", -1).acquire(_Reporter("gone", model="other").status())
    assert _join(client, namespace, _Reporter("new", model="m"))


@pytest.mark.parametrize("model", ["m", "other"])
def test_a_worker_that_began_without_the_first_lane_drains_if_it_may_not_join(
    client: redis.Redis, namespace: str, model: str
) -> None:
    other, drained = _Reporter("other", model="other"), list[str]()
    other.joined = True
    Lease(client, namespace, "other", 900).acquire(other.status())
    reporter, registry = _Reporter("new", model=model), WorkerRegistry(client, namespace)
    lease = Lease(client, namespace, "new", 900)
    fleet = FleetJoin(registry, lease, reporter, namespace, lambda: True)  # type: ignore[arg-type]
    fleet.join()
    assert (reporter.joined, lease.was_held) == (True, False)
    for _ in range(2):
        fleet.compare_if_late(lambda: drained.append(model))
    assert drained == (["m"] if model == "m" else [])

"""Which rows get the places in a device batch that no job wants."""

import numpy as np
import pytest

from imagefleet.shared.errors import LeaseLost
from imagefleet.worker.devices.row_backlog import RowBacklog, RowWork
from imagefleet.worker.devices.work import Slot
from imagefleet.worker.engine.interface import ImageSpec, Shape
from imagefleet.worker.queues.claims import Claimed

SMALL, LARGE = Shape(height=64, width=64), Shape(height=128, width=128)
CAPACITY = 4


def _rows(*rows: int, shape: Shape = SMALL, images: int = 1, alone: bool = False) -> list[RowWork]:
    spec = ImageSpec(prompt="p", num_inference_steps=1, guidance_scale=1.0)
    return [RowWork(shape=shape, specs=(spec,) * images, row=row, alone=alone) for row in rows]


def _expect(backlog: RowBacklog, tag: str) -> None:
    backlog.expect(Claimed(tag=tag, list_key="q", message="m", deliveries=1, attempt=tag))


def _numbers(batch: list[Slot]) -> list[int]:
    return [slot.work.row for slot in batch if isinstance(slot.work, RowWork)]


@pytest.fixture
def backlog() -> RowBacklog:
    backlog = RowBacklog(CAPACITY)
    _expect(backlog, "1")
    _expect(backlog, "2")
    return backlog


def test_a_batch_is_full_across_the_border_of_two_shards(backlog: RowBacklog) -> None:
    backlog.fill("1", _rows(0, 1, 2))
    backlog.fill("2", _rows(3, 4, 5))
    assert _numbers(backlog.take(CAPACITY)) == [0, 1, 2, 3]
    assert _numbers(backlog.take(CAPACITY)) == [4, 5]
    assert not backlog.has_rows()


def test_rows_of_another_shape_than_the_jobs_wait(backlog: RowBacklog) -> None:
    backlog.fill("1", _rows(0, 1, shape=LARGE))
    backlog.fill("2", _rows(2, 3))
    assert _numbers(backlog.take(3, SMALL)) == [2, 3]
    assert _numbers(backlog.take(CAPACITY)) == [0, 1]


def test_a_suspect_row_has_a_batch_to_itself(backlog: RowBacklog) -> None:
    backlog.fill("1", _rows(0, images=2, alone=True))
    backlog.fill("2", _rows(1))
    assert _numbers(backlog.take(3, SMALL)) == [1]
    assert _numbers(backlog.take(CAPACITY)) == [0, 0]


def test_a_suspect_row_does_not_wait_for_the_shards_before_its_own(backlog: RowBacklog) -> None:
    backlog.fill("1", _rows(*range(10)))
    backlog.fill("2", _rows(20, images=6, alone=True), last=False)
    assert _numbers(backlog.take(CAPACITY)) == [20] * 4
    assert _numbers(backlog.take(CAPACITY)) == [20] * 2
    assert _numbers(backlog.take(CAPACITY)) == [0, 1, 2, 3]


def test_rows_that_ended_meanwhile_take_no_place(backlog: RowBacklog) -> None:
    rows = _rows(0, 1)
    backlog.fill("1", rows)
    rows[0].abandon(LeaseLost("gone"))
    assert _numbers(backlog.take(CAPACITY)) == [1]


def test_another_shard_is_wanted_before_the_rows_run_out() -> None:
    backlog = RowBacklog(CAPACITY)
    assert backlog.wants_shard()
    _expect(backlog, "1")
    assert not backlog.wants_shard()  # it may bring enough
    backlog.fill("1", _rows(*range(100)))
    assert not backlog.wants_shard()
    taken = 0
    while not backlog.wants_shard():
        for slot in backlog.take(CAPACITY):
            assert isinstance(slot.work, RowWork)
            backlog.stored("1", slot.work)
            taken += 1
    assert CAPACITY <= 100 - taken < 100


def test_no_more_than_three_shards_are_in_hand(backlog: RowBacklog) -> None:
    for tag in ("1", "2"):
        backlog.fill(tag, [])
    assert backlog.wants_shard()
    _expect(backlog, "3")
    backlog.fill("3", [])
    assert not backlog.wants_shard()
    backlog.leave("1")
    assert backlog.wants_shard()


def test_pictures_that_nobody_stores_hold_the_devices_back(backlog: RowBacklog) -> None:
    backlog.fill("1", _rows(*range(100)))
    taken = []
    while batch := backlog.take(CAPACITY):
        taken += batch
    assert CAPACITY < len(taken) < 100
    for slot in taken[:CAPACITY]:
        assert isinstance(slot.work, RowWork)
        backlog.stored("1", slot.work)
    assert len(backlog.take(CAPACITY)) == CAPACITY


@pytest.mark.parametrize("alone", [False, True])
def test_a_row_of_more_pictures_than_may_wait_is_painted_to_its_end(
    backlog: RowBacklog, alone: bool
) -> None:
    backlog.fill("1", _rows(0, 1, images=64, alone=alone))
    taken = []
    while batch := backlog.take(CAPACITY):
        taken += batch
    assert _numbers(taken) == [0] * 64


def test_closing_ends_what_waits_and_leaves_the_devices_theirs(backlog: RowBacklog) -> None:
    rows = _rows(*range(6))
    backlog.fill("1", rows)
    on_devices = backlog.take(CAPACITY)
    backlog.close(LeaseLost("leaving"))
    assert [work.ended for work in rows] == [False] * 4 + [True] * 2
    assert backlog.tags_in(on_devices) == ["1"]
    for slot in on_devices:
        slot.work.deliver(slot.index, np.zeros((64, 64, 3), np.uint8))
    assert all(work.ended for work in rows)
    assert not backlog.fill("2", _rows(7))
    assert not backlog.wants_shard()


def test_abandoning_ends_every_row_in_hand(backlog: RowBacklog) -> None:
    rows = _rows(*range(6))
    backlog.fill("1", rows)
    backlog.take(CAPACITY)
    backlog.abandon(LeaseLost("the lease ran out"))
    assert all(work.ended for work in rows)

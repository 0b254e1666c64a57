"""The backlog chooses which rows get the slots of a device batch that no job needs."""

import weakref
from dataclasses import replace

import numpy as np
import pytest

from imagefleet.shared.errors import LeaseLost
from imagefleet.worker.devices.row_backlog import RowBacklog, RowWork
from imagefleet.worker.devices.slots import Slot
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.queues.claim_types import Claimed

SMALL, LARGE = Shape(height=64, width=64), Shape(height=128, width=128)
CAPACITY = 4


def _rows(*rows: int, shape: Shape = SMALL, images: int = 1, alone: bool = False) -> list[RowWork]:
    spec = ImageSpec(prompt="p", num_inference_steps=1, guidance_scale=1.0)
    return [RowWork(shape=shape, specs=(spec,) * images, row=row, alone=alone) for row in rows]


def _add_shard(backlog: RowBacklog, tag: str) -> None:
    backlog.add_shard(Claimed(tag=tag, list_key="q", message="m", deliveries=1, attempt=tag))


def _numbers(batch: list[Slot]) -> list[int]:
    return [slot.work.row for slot in batch if isinstance(slot.work, RowWork)]


@pytest.fixture
def backlog() -> RowBacklog:
    backlog = RowBacklog(CAPACITY)
    _add_shard(backlog, "1")
    _add_shard(backlog, "2")
    return backlog


def test_a_batch_may_hold_rows_of_two_shards(backlog: RowBacklog) -> None:
    backlog.add_rows("1", _rows(0, 1, 2))
    backlog.add_rows("2", _rows(3, 4, 5))
    assert _numbers(backlog.pop_slots(CAPACITY)) == [0, 1, 2, 3]
    assert _numbers(backlog.pop_slots(CAPACITY)) == [4, 5]
    assert not backlog.has_rows()


def test_rows_of_another_shape_than_the_jobs_wait(backlog: RowBacklog) -> None:
    backlog.add_rows("1", _rows(0, 1, shape=LARGE))
    backlog.add_rows("2", _rows(2, 3))
    assert _numbers(backlog.pop_slots(3, SMALL)) == [2, 3]
    assert _numbers(backlog.pop_slots(CAPACITY)) == [0, 1]


def test_a_suspect_row_gets_a_batch_of_its_own(backlog: RowBacklog) -> None:
    backlog.add_rows("1", _rows(0, images=2, alone=True))
    backlog.add_rows("2", _rows(1))
    assert _numbers(backlog.pop_slots(3, SMALL)) == [1]
    assert _numbers(backlog.pop_slots(CAPACITY)) == [0, 0]


def test_a_suspect_row_does_not_wait_for_the_shards_before_its_own(backlog: RowBacklog) -> None:
    backlog.add_rows("1", _rows(*range(10)))
    backlog.add_rows("2", _rows(20, images=6, alone=True), last=False)
    assert _numbers(backlog.pop_slots(CAPACITY)) == [20] * 4
    assert _numbers(backlog.pop_slots(CAPACITY)) == [20] * 2
    assert _numbers(backlog.pop_slots(CAPACITY)) == [0, 1, 2, 3]


def test_rows_that_ended_while_waiting_get_no_slot(backlog: RowBacklog) -> None:
    rows = _rows(0, 1)
    backlog.add_rows("1", rows)
    rows[0].abandon(LeaseLost("gone"))
    assert _numbers(backlog.pop_slots(CAPACITY)) == [1]


def test_another_shard_is_wanted_before_the_rows_run_out() -> None:
    backlog = RowBacklog(CAPACITY)
    assert backlog.wants_shard()
    _add_shard(backlog, "1")
    assert not backlog.wants_shard()  # its rows may be enough
    backlog.add_rows("1", _rows(*range(100)))
    assert not backlog.wants_shard()
    taken = 0
    while not backlog.wants_shard():
        for slot in backlog.pop_slots(CAPACITY):
            assert isinstance(slot.work, RowWork)
            backlog.release_row("1", slot.work)
            taken += 1
    assert CAPACITY <= 100 - taken < 100


def test_at_most_three_shards_are_held(backlog: RowBacklog) -> None:
    for tag in ("1", "2"):
        backlog.add_rows(tag, [])
    assert backlog.wants_shard()
    _add_shard(backlog, "3")
    backlog.add_rows("3", [])
    assert not backlog.wants_shard()
    backlog.remove_shard("1")
    assert backlog.wants_shard()


def test_images_that_are_not_stored_limit_the_rows_that_start(backlog: RowBacklog) -> None:
    backlog.add_rows("1", _rows(*range(100)))
    taken = []
    while batch := backlog.pop_slots(CAPACITY):
        taken += batch
    assert CAPACITY < len(taken) < 100
    for slot in taken[:CAPACITY]:
        assert isinstance(slot.work, RowWork)
        backlog.release_row("1", slot.work)
    assert len(backlog.pop_slots(CAPACITY)) == CAPACITY


@pytest.mark.parametrize("alone", [False, True])
def test_a_started_row_continues_beyond_the_limit_of_unstored_images(
    backlog: RowBacklog, alone: bool
) -> None:
    backlog.add_rows("1", _rows(0, 1, images=64, alone=alone))
    taken = []
    while batch := backlog.pop_slots(CAPACITY):
        taken += batch
    assert _numbers(taken) == [0] * 64


def test_closing_abandons_waiting_rows_but_not_those_on_the_devices(backlog: RowBacklog) -> None:
    rows = _rows(*range(6))
    backlog.add_rows("1", rows)
    on_devices = backlog.pop_slots(CAPACITY)
    backlog.close(LeaseLost("draining"))
    assert [work.ended for work in rows] == [False] * 4 + [True] * 2
    assert backlog.tags_in(on_devices) == ["1"]
    for slot in on_devices:
        slot.work.deliver(slot.index, np.zeros((64, 64, 3), np.uint8))
    assert all(work.ended for work in rows)
    assert not backlog.add_rows("2", _rows(7))
    assert not backlog.wants_shard()


def test_abandoning_ends_every_unfinished_row(backlog: RowBacklog) -> None:
    rows = _rows(*range(6))
    backlog.add_rows("1", rows)
    backlog.pop_slots(CAPACITY)
    backlog.abandon(LeaseLost("the lease ran out"))
    assert all(work.ended for work in rows)


def test_images_of_a_row_that_is_done_are_dropped_while_its_shard_refers_to_it() -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    start = InitImage(pixels=pixels.copy(), strength=0.8, digest="sha256:0")
    [row] = _rows(0, images=2)
    row.specs = tuple(replace(spec, init_image=start) for spec in row.specs)
    alive = weakref.ref(pixels), weakref.ref(start.pixels)
    row.deliver(0, pixels)
    row.deliver(1, pixels)
    assert len(row.wait_for_images()) == 2
    del pixels, start
    assert all(reference() is not None for reference in alive)
    row.release_images()
    assert [reference() for reference in alive] == [None, None]
    assert row.ended


def test_an_image_that_comes_after_its_row_was_abandoned_is_not_kept() -> None:
    [row] = _rows(0, images=2)
    row.abandon(LeaseLost("the lease ran out"))
    row.deliver(0, np.zeros((64, 64, 3), np.uint8))
    assert row.delivered == 0

"""Waiting slots get free places in the order of their claims, and no shape waits for ever."""

from collections.abc import Sequence

from imagefleet.shared.errors import JobCancelled
from imagefleet.worker.devices.slot_assigner import SlotAssigner
from imagefleet.worker.devices.slots import Slot, Work
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape

SMALL, WIDE = Shape(height=64, width=64), Shape(height=64, width=128)


def _slot(steps: int = 4, shape: Shape = SMALL, *, alone: bool = False) -> Slot:
    spec = ImageSpec(prompt="", num_inference_steps=steps, guidance_scale=1.0)
    return Slot(work=Work(shape=shape, specs=(spec,), alone=alone), index=0)


def _take_all(assigner: SlotAssigner, streams: int) -> list[Slot]:
    return [slot for stream in range(streams) for slot in assigner.take(stream).values()]


def _run_to_end(assigner: SlotAssigner, streams: int, waiting: Sequence[Slot]) -> list[Slot]:
    """Give the assigner what it wants of `waiting` and step until all have ended. Return the slots
    in the order in which they started."""
    left, queue, started = {}, list(waiting), list[Slot]()
    for _ in range(10_000):
        free_slots = assigner.slots_to_claim()[0]
        assigner.add(queue[:free_slots])
        del queue[:free_slots]
        for stream in range(streams):
            for number, slot in assigner.take(stream).items():
                left[stream, number] = slot.spec.steps
                started.append(slot)
            shapes = {slot.work.shape for slot in assigner.running(stream).values()}
            assert len(shapes) <= 1
            if assigner.running(stream):
                assigner.stepped(stream)
        for place in list(left):
            left[place] -= 1
            if not left[place]:
                assigner.release(*place)
                del left[place]
        if not (queue or assigner.has_waiting or assigner.has_running):
            return started
    raise AssertionError("some slots never ended")


def test_free_slots_are_taken_in_the_order_of_the_claims() -> None:
    assigner = SlotAssigner(2, 2)
    slots = [_slot() for _ in range(5)]
    assigner.add(slots)
    assert _take_all(assigner, 2) == slots[:4]
    assigner.release(1, 0)
    assert assigner.take(1) == {0: slots[4]}


def test_the_place_of_an_image_that_nobody_wants_is_claimed_for_before_it_is_free() -> None:
    assigner = SlotAssigner(1, 2)
    slots = [_slot(9), _slot(9)]
    assigner.add(slots)
    assigner.take(0)
    assert assigner.slots_to_claim()[0] == 0
    slots[0].work.abandon(JobCancelled("it was cancelled"))
    assert assigner.slots_to_claim()[0] == 1


def test_as_many_are_wanted_as_places_are_free_or_soon_will_be() -> None:
    assigner = SlotAssigner(2, 2)
    assert assigner.slots_to_claim() == (4, None)
    assigner.add([_slot(2), _slot(9), _slot(9)])
    assert assigner.slots_to_claim() == (1, None)
    _take_all(assigner, 2)
    assert assigner.slots_to_claim(lead_steps=2)[0] == 2
    assert assigner.slots_to_claim(lead_steps=9)[0] == 4


def test_a_stream_that_has_just_begun_is_filled_up_with_its_shape() -> None:
    assigner = SlotAssigner(1, 4)
    assigner.add([_slot(shape=WIDE)])
    assigner.take(0)
    assert assigner.slots_to_claim() == (3, WIDE)
    assigner.stepped(0)
    assert assigner.slots_to_claim() == (3, None)


def test_a_shape_that_runs_nowhere_gets_the_stream_that_is_empty_first() -> None:
    assigner = SlotAssigner(2, 2)
    assigner.add([_slot(9), _slot(9), _slot(5), _slot(5)])
    _take_all(assigner, 2)
    wide = _slot(shape=WIDE)
    assigner.add([wide, _slot(), _slot()])
    assigner.release(1, 0)
    assert assigner.take(1) == {}, "the stream with the least steps left is emptied for it"
    assigner.release(0, 0)
    assert assigner.take(0), "the other stream goes on with its shape"
    assigner.release(1, 1)
    assert assigner.take(1) == {0: wide}


def test_a_slot_is_passed_over_by_at_most_as_many_as_the_worker_has_slots() -> None:
    for streams, capacity in ((1, 4), (2, 2), (4, 1), (3, 4)):
        others = [_slot(1 + n % 7) for n in range(200)]
        wide = [_slot(5, WIDE) for _ in range(20)]
        waiting = [*others[:20], *wide, *others[20:]]
        started = _run_to_end(SlotAssigner(streams, capacity), streams, waiting)
        assert sorted(map(id, started)) == sorted(map(id, waiting))
        position = {slot: at for at, slot in enumerate(waiting)}
        for at, slot in enumerate(started):
            overtaken_by = sum(position[other] > position[slot] for other in started[:at])
            # One stream's worth may have been under way when it became the head.
            assert overtaken_by <= 3 * streams * capacity, (streams, capacity)


def test_work_that_runs_alone_waits_for_empty_streams_and_others_wait_for_it() -> None:
    assigner = SlotAssigner(2, 1)
    first, lone, later = _slot(), _slot(alone=True), _slot()
    assigner.add([first, lone, later])
    assert _take_all(assigner, 2) == [first]
    assert assigner.slots_to_claim() == (0, None)
    assigner.release(0, 0)
    assert _take_all(assigner, 2) == [lone]
    assigner.release(0, 0)
    assert _take_all(assigner, 2) == [later]


def test_a_part_of_a_failed_batch_has_a_stream_to_itself() -> None:
    assigner = SlotAssigner(2, 2)
    half, other = [_slot()], _slot()
    assigner.retry(half)
    assigner.add([other])
    assert assigner.slots_to_claim() == (1, None), "the other stream goes on"
    assert assigner.take(0) == {0: half[0]}
    assigner.add([_slot(), _slot()])
    assert assigner.take(0) == {}, "nothing joins it"
    assert assigner.take(1)[0] is other


def test_a_reservation_ends_with_the_last_slot_that_waits_for_it() -> None:
    """The slot for whose shape the stream was reserved ended while it waited."""
    assigner = SlotAssigner(1, 3)
    first, ended, last = _slot(), _slot(shape=WIDE), _slot()
    assigner.add([first])
    assigner.take(0)
    assigner.add([ended, last])
    assert assigner.take(0) == {}
    ended.work.abandon(JobCancelled("its run was stopped"))
    assert assigner.take(0) == {1: last}


def test_slots_that_find_no_place_are_not_claimed_again_and_again() -> None:
    """A place that only one shape may take is then claimed for that shape only."""
    assigner = SlotAssigner(2, 4)
    for stream in (0, 1):
        assigner.add([_slot(9)])
        assigner.take(stream)
        assigner.stepped(stream)
    assert assigner.slots_to_claim() == (6, None)
    assigner.add([_slot(shape=WIDE) for _ in range(6)])
    _take_all(assigner, 2)
    assert assigner.slots_to_claim() == (3, SMALL), "the other stream is reserved for the wide ones"


def test_a_shape_is_not_preferred_while_a_place_is_open_to_all() -> None:
    assigner = SlotAssigner(2, 2)
    assigner.add([_slot(9)])
    assigner.take(0)
    assert assigner.slots_to_claim() == (3, None)
    assigner.add([_slot(9, WIDE)])
    assigner.take(1)
    assert assigner.slots_to_claim()[0] == 1, "one of both streams, which have just begun"


def test_a_failed_part_that_is_larger_than_a_stream_runs_in_two_turns() -> None:
    """Images that were being decoded failed together with those that ran."""
    assigner = SlotAssigner(1, 2)
    slots = [_slot() for _ in range(3)]
    assigner.retry(slots)
    assert assigner.take(0) == {0: slots[0], 1: slots[1]}
    assert assigner.take(0) == {}
    assigner.release(0, 0)
    assigner.release(0, 1)
    assert assigner.take(0) == {0: slots[2]}

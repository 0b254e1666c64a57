"""One shape a batch, the first to arrive and what is like it, suspects alone."""

import random
from collections import deque

import pytest

from imagefleet.shared.errors import JobCancelled
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.worker.devices.batching import BatchTimeout, next_batch, suspect_from
from imagefleet.worker.devices.work import Slot, slots_of
from imagefleet.worker.jobs.attempt import Attempt, plan_attempt
from tests.support.engines import INFO


def _attempt(name: str, deliveries: int = 1, **parameters: object) -> Attempt:
    request = JobRequest.parse({"prompt": name, "seed": 1, **parameters})
    attempt = plan_attempt(name, request, INFO)
    attempt.deliveries = deliveries
    return attempt


def _waiting(*attempts: Attempt) -> deque[Slot]:
    return deque(slot for attempt in attempts for slot in slots_of(attempt))


def _names(batch: list[Slot]) -> list[str]:
    return [slot.work.job_id for slot in batch]


def test_a_batch_takes_what_arrived_first_up_to_its_capacity() -> None:
    waiting = _waiting(*(_attempt(name) for name in "abc"))
    assert _names(next_batch(waiting, 2, 4)) == ["a", "b"]
    assert _names(next_batch(waiting, 2, 4)) == ["c"]
    assert next_batch(waiting, 2, 4) == []


def test_another_shape_waits_for_a_batch_of_its_own_and_keeps_its_place() -> None:
    wide = {"height": 64, "width": 128}
    waiting = _waiting(_attempt("a"), _attempt("b", **wide), _attempt("c"), _attempt("d", **wide))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "c"]
    assert _names(next_batch(waiting, 8, 4)) == ["b", "d"]


def test_the_first_brings_those_most_alike_to_it_in_steps() -> None:
    steps = {"a": 20, "b": 50, "c": 4, "d": 20, "e": 21}
    waiting = _waiting(*(_attempt(name, num_inference_steps=n) for name, n in steps.items()))
    assert _names(next_batch(waiting, 3, 4)) == ["a", "d", "c"]
    assert _names(next_batch(waiting, 1, 4)) == ["b"], "the others kept their order"
    assert _names(next_batch(waiting, 3, 4)) == ["e"]


def test_each_that_joins_is_the_most_alike_to_the_longest_so_far() -> None:
    rng = random.Random(1)
    for _ in range(100):
        steps = [rng.randint(1, 12) for _ in range(12)]
        waiting = _waiting(*(_attempt("a", num_inference_steps=each) for each in steps))
        longest, *others = steps
        expected = [longest]
        while len(expected) < 6:
            shorter = [each for each in others if each <= longest]
            expected.append(max(shorter) if shorter else min(others))
            others.remove(expected[-1])
            longest = max(expected)
        assert [slot.spec.steps for slot in next_batch(waiting, 6, 4)] == expected


def test_the_images_of_one_job_may_need_several_batches() -> None:
    waiting = _waiting(_attempt("a", num_images_per_prompt=3))
    assert [slot.index for slot in next_batch(waiting, 2, 4)] == [0, 1]
    assert [slot.index for slot in next_batch(waiting, 2, 4)] == [2]


def test_a_job_that_took_workers_down_runs_alone_with_all_its_images() -> None:
    suspect = _attempt("s", deliveries=3, num_images_per_prompt=2)
    waiting = _waiting(_attempt("a"), suspect, _attempt("b"))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "b"]
    assert _names(next_batch(waiting, 8, 4)) == ["s", "s"]


def test_a_second_delivery_is_nobody_s_fault_yet() -> None:
    waiting = _waiting(_attempt("a"), _attempt("b", deliveries=2))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "b"]


def test_an_attempt_that_ended_while_it_waited_gets_no_slot() -> None:
    gone, kept = _attempt("gone"), _attempt("kept")
    gone.abandon(JobCancelled("withdrawn"))
    assert _names(next_batch(_waiting(gone, kept), 8, 4)) == ["kept"]
    assert _names(next_batch(_waiting(kept, gone), 8, 4)) == ["kept"]


@pytest.mark.parametrize(("allowed", "alone_from"), [(1, 2), (2, 2), (3, 2), (4, 3), (10, 3)])
def test_a_job_runs_alone_from_its_third_delivery_however_many_are_allowed(
    allowed: int, alone_from: int
) -> None:
    assert suspect_from(allowed) == alone_from


def test_a_short_batch_lingers_and_a_full_one_never(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("imagefleet.worker.devices.batching.time.monotonic", lambda: now[0])
    linger = BatchTimeout(0.5, capacity=4)
    few, full = _waiting(_attempt("a")), _waiting(_attempt("b", num_images_per_prompt=4))
    assert linger.should_wait(few)
    now[0] += 0.4
    assert linger.should_wait(few)
    assert not linger.should_wait(full)
    assert linger.should_wait(few), "the full one ended the wait; this is another"
    now[0] += 0.5
    assert not linger.should_wait(few)
    assert not BatchTimeout(0.0, capacity=4).should_wait(few)

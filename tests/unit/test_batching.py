"""A batch has one shape, its oldest job and jobs with like step counts; suspects run alone."""

import random
from collections import deque
from typing import cast

import pytest

from imagefleet.shared.errors import JobCancelled
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.devices.batching import BatchTimeout, first_suspect_delivery, next_batch
from imagefleet.worker.devices.slots import Slot, slots_of
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
    return [cast(Attempt, slot.work).job_id for slot in batch]


def test_a_batch_takes_the_oldest_jobs_up_to_its_capacity() -> None:
    waiting = _waiting(*(_attempt(name) for name in "abc"))
    assert _names(next_batch(waiting, 2, 4)) == ["a", "b"]
    assert _names(next_batch(waiting, 2, 4)) == ["c"]
    assert next_batch(waiting, 2, 4) == []


def test_jobs_of_another_shape_keep_their_order_for_the_next_batch() -> None:
    wide = {"height": 64, "width": 128}
    waiting = _waiting(_attempt("a"), _attempt("b", **wide), _attempt("c"), _attempt("d", **wide))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "c"]
    assert _names(next_batch(waiting, 8, 4)) == ["b", "d"]


def test_the_oldest_job_is_joined_by_jobs_with_like_step_counts() -> None:
    steps = {"a": 20, "b": 50, "c": 4, "d": 20, "e": 21}
    waiting = _waiting(*(_attempt(name, num_inference_steps=n) for name, n in steps.items()))
    assert _names(next_batch(waiting, 3, 4)) == ["a", "d", "c"]
    assert _names(next_batch(waiting, 1, 4)) == ["b"], "the other jobs kept their order"
    assert _names(next_batch(waiting, 3, 4)) == ["e"]


def test_the_order_equals_comparing_with_the_longest_job_chosen_so_far() -> None:
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


def test_a_suspect_job_runs_alone_with_all_its_images() -> None:
    suspect = _attempt("s", deliveries=3, num_images_per_prompt=2)
    waiting = _waiting(_attempt("a"), suspect, _attempt("b"))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "b"]
    assert _names(next_batch(waiting, 8, 4)) == ["s", "s"]


def test_a_job_is_no_suspect_at_its_second_delivery() -> None:
    waiting = _waiting(_attempt("a"), _attempt("b", deliveries=2))
    assert _names(next_batch(waiting, 8, 4)) == ["a", "b"]


def test_an_attempt_that_ended_while_waiting_gets_no_slot() -> None:
    ended, live = _attempt("ended"), _attempt("live")
    ended.abandon(JobCancelled("cancelled"))
    assert _names(next_batch(_waiting(ended, live), 8, 4)) == ["live"]
    assert _names(next_batch(_waiting(live, ended), 8, 4)) == ["live"]


@pytest.mark.parametrize(("max_deliveries", "expected"), [(1, 2), (2, 2), (3, 2), (4, 3), (10, 3)])
def test_a_job_is_a_suspect_from_its_third_delivery_or_earlier_with_few_deliveries(
    max_deliveries: int, expected: int
) -> None:
    assert first_suspect_delivery(max_deliveries) == expected


def test_only_a_batch_that_is_not_full_waits_for_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("imagefleet.worker.devices.batching.time.monotonic", lambda: now[0])
    timeout = BatchTimeout(0.5, capacity=4)
    few, full = _waiting(_attempt("a")), _waiting(_attempt("b", num_images_per_prompt=4))
    assert timeout.should_wait(few)
    now[0] += 0.4
    assert timeout.should_wait(few)
    assert not timeout.should_wait(full)
    assert timeout.should_wait(few), "the full batch ended the wait; a new one starts"
    now[0] += 0.5
    assert not timeout.should_wait(few)
    assert not BatchTimeout(0.0, capacity=4).should_wait(few)

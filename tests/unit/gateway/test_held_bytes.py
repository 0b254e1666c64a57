"""Large requests share the memory that a gateway has for them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from imagefleet.producer.gateway.problems import Problem
from imagefleet.producer.gateway.web.held_bytes import ByteBudget, HeldBytes

_NEVER_S = 900.0


async def _is_waiting(task: "asyncio.Task[None]") -> bool:
    await asyncio.sleep(0)
    return not task.done()


def _run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_who_finds_no_bytes_waits_until_others_give_back_and_the_first_is_served_first() -> None:
    async def test() -> None:
        budget = ByteBudget(100, wait_s=_NEVER_S)
        first, large, small = HeldBytes(budget), HeldBytes(budget), HeldBytes(budget)
        await first.take(60)
        takes_much = asyncio.create_task(large.take(70))
        assert await _is_waiting(takes_much)
        takes_little = asyncio.create_task(small.take(30))  # there are enough, but it came later
        assert await _is_waiting(takes_little)
        first.release()
        await asyncio.gather(takes_much, takes_little)
        assert (first.count, large.count, small.count) == (0, 70, 30)

    _run(test())


def test_who_waited_too_long_is_refused_and_those_behind_go_on() -> None:
    async def test() -> None:
        budget = ByteBudget(100, wait_s=0.01)
        first, large = HeldBytes(budget), HeldBytes(budget)
        await first.take(60)
        with pytest.raises(Problem) as refused:
            await large.take(70)
        assert (refused.value.status, refused.value.code) == (503, "too_many_bytes")
        assert refused.value.retry_after_s
        assert large.count == 0
        await HeldBytes(budget).take(40)

    _run(test())


def test_a_request_that_is_gone_while_it_waits_keeps_no_bytes() -> None:
    async def test() -> None:
        budget = ByteBudget(100, wait_s=_NEVER_S)
        first = HeldBytes(budget)
        await first.take(60)
        leaves, stays = (asyncio.create_task(HeldBytes(budget).take(70)) for _ in range(2))
        assert await _is_waiting(stays)
        first.release()  # the bytes are granted in the moment in which the request leaves
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        await stays
        with pytest.raises(Problem):
            await budget.take(31, waits=False)
        assert await budget.take(30, waits=False) == 30

    _run(test())


def test_a_request_that_holds_bytes_does_not_wait_for_more() -> None:
    async def test() -> None:
        budget = ByteBudget(100, wait_s=_NEVER_S)
        one, other = HeldBytes(budget), HeldBytes(budget)
        await one.take(50)
        await other.take(50)
        for each in (one, other):
            with pytest.raises(Problem):
                await each.take(1)

    _run(test())


def test_a_request_that_needs_more_than_there_is_goes_on_alone() -> None:
    async def test() -> None:
        budget = ByteBudget(100, wait_s=0.01)
        huge = HeldBytes(budget)
        await huge.take(1_000)
        with pytest.raises(Problem):
            await HeldBytes(budget).take(1)
        huge.release()
        await HeldBytes(budget).take(100)

    _run(test())

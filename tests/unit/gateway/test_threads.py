"""Calls that block run in a bounded number of threads, and nobody waits for them for ever."""

import asyncio
import threading
from contextvars import ContextVar

import anyio
import pytest

from imagefleet.producer.gateway.threads import Threads, store_threads, upload_threads
from imagefleet.shared.errors import BrokerUnavailable, StorageUnavailable

_LONG_S = 60


def test_calls_run_at_the_same_time_as_far_as_there_are_threads() -> None:
    threads, both = Threads(2), threading.Barrier(2, timeout=_LONG_S)
    running, most, lock = 0, 0, threading.Lock()

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1
        return number

    async def ask() -> list[int]:
        return await asyncio.gather(*(threads.run(call, number) for number in range(6)))

    assert asyncio.run(ask()) == list(range(6))
    assert most == 2


def test_a_call_raises_what_its_function_raises_and_sees_its_context() -> None:
    threads, seen = Threads(1, within_s=_LONG_S), ContextVar("seen", default="nothing")

    def refuse() -> None:
        raise TimeoutError(seen.get())

    async def ask() -> None:
        seen.set("the request")
        await threads.run(refuse)

    with pytest.raises(TimeoutError, match="the request"):
        asyncio.run(ask())


def test_who_waits_for_a_server_that_hangs_is_answered_and_its_thread_stays_taken() -> None:
    threads, answers, begun = Threads(1, within_s=0.05), threading.Event(), []

    def hang() -> str:
        begun.append(threading.current_thread())
        answers.wait(_LONG_S)
        return "at last"

    async def ask() -> str:
        for _ in range(3):  # the first has the thread, the others wait for it
            with pytest.raises(BrokerUnavailable, match=r"Redis did not answer within 0\.05 s"):
                await threads.run(hang)
        assert len(begun) == 1
        answers.set()
        return await Threads.run(threads, hang)

    assert asyncio.run(ask()) == "at last"
    assert len(set(begun)) == 1
    assert len(begun) == 2  # nobody waited for the others any more


def test_a_store_that_hangs_is_named() -> None:
    threads, answers = store_threads(1, 0.05), threading.Event()

    async def ask() -> None:
        await threads.run(answers.wait, _LONG_S)

    with pytest.raises(StorageUnavailable, match="the store of images did not answer"):
        asyncio.run(ask())
    answers.set()


def test_a_client_that_goes_does_not_end_the_call_that_uses_its_file() -> None:
    threads, goes_on, done = Threads(1), threading.Event(), []

    def call() -> None:
        goes_on.wait(_LONG_S)
        done.append("whole")

    async def ask() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(threads.run, call)
            await anyio.sleep(0)
            group.cancel_scope.cancel()
            goes_on.set()

    asyncio.run(ask())
    assert done == ["whole"]


def test_an_upload_that_no_thread_begins_in_time_never_runs_and_others_have_their_time() -> None:
    threads, goes_on, begun = upload_threads(1, 0.05), threading.Event(), []

    def upload(name: str) -> str:
        begun.append(name)
        goes_on.wait(_LONG_S)
        return name

    async def ask() -> list[str]:
        first = asyncio.create_task(threads.run(upload, "first"))
        await asyncio.sleep(0)
        with pytest.raises(StorageUnavailable, match=r"no thread .* was free within 0\.05 s"):
            await threads.run(upload, "second")
        assert not first.done()
        goes_on.set()
        return [await first, await threads.run(upload, "third")]

    assert asyncio.run(ask()) == ["first", "third"]
    assert begun == ["first", "third"]

"""Datasets by `AsyncClient`: start, watch, wait, cancel, and a wait that is cancelled."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagefleet import AsyncBulkRun, AsyncClient
from imagefleet.shared.errors import ResultTimeout
from imagefleet.shared.jobs.model import State
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from tests.support.processes import StartWorker, until

PROMPTS = [f"prompt {n}" for n in range(20)]


def test_a_dataset_is_made_watched_and_verified(
    start: StartWorker, redis_server: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    start()

    async def make() -> None:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            run = await client.bulk(PROMPTS, tmp_path / "data", shard_size=5)
            states = [status.state async for status in run.statuses(0.1)]
            assert states[-1] is State.SUCCEEDED
            assert set(states[:-1]) <= {State.RUNNING}
            assert (await run.wait(1)).images == 20
            assert (await run.verify(sample=1)).clean
            found = await client.find_bulk(run.id)
            assert (found.id, found.plan) == (run.id, run.plan)
            dry = await client.dry_run_bulk(PROMPTS, tmp_path / "data", shard_size=5)
            assert (dry.is_planned, dry.images) == (True, 20)

    asyncio.run(make())


def test_a_run_without_a_worker_times_out_and_is_cancelled(
    redis_server: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    async def make() -> None:
        async with AsyncClient(redis_server.url, namespace=namespace) as client:
            run = await client.bulk(PROMPTS, tmp_path / "data")
            with pytest.raises(ResultTimeout, match="it continues"):
                await run.wait(0)
            assert await run.cancel() is State.CANCELLED
            assert (await run.wait()).state is State.CANCELLED

    asyncio.run(make())


def test_cancelled_waits_leave_no_thread_no_task_and_one_connection(
    own_redis: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    def connections() -> int:
        return len([each for each in observer.client_list() if each["db"] == "0"])

    async def make() -> None:
        # With few threads, the next wait would find none while cancelled polls still read.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(64))
        before = connections()
        async with AsyncClient(own_redis.url, namespace=namespace) as producer:
            run = await producer.bulk(PROMPTS, tmp_path / "data")
            await _cancel_wait(run)
            threads = threading.active_count()
            for _ in range(30):
                await _cancel_wait(run)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            assert not tasks
            # Some cancelled polls may still read when the next comes.
            assert connections() <= before + 10
            assert threading.active_count() <= threads + 10
            assert (await run.status()).state is State.RUNNING
            await run.cancel()
        until(lambda: connections() == before)

    with connect(own_redis.url) as observer:
        asyncio.run(make())


async def _cancel_wait(run: AsyncBulkRun) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.wait(), 0.05)

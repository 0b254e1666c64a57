"""Changes of jobs reach those who watch them, over one subscription of the process."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.jobs.job_changes import JobChanges
from imagefleet.producer.gateway.jobs.watch import JobWatcher
from imagefleet.shared.errors import (
    BrokerUnavailable,
    InvalidRequest,
    UnknownJob,
    UnreadableRecord,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.progress import ProgressReport
from imagefleet.shared.jobs.records import JobRecords
from imagefleet.shared.jobs.redis_keys import changes_channel
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.status import JobStatus
from imagefleet.shared.redis_client.connection import RETRY_FOREVER, connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.settings.settings import Settings
from tests.support.certificates import make_certificate
from tests.support.processes import until
from tests.support.records import start_attempt
from tests.support.redis import RedisProxy, SentinelPair, TcpServer

RESULT = JobResult(images=(), model="m", model_digest="d", worker="w", timings={})
NEVER_S = 3600.0
"""With such a poll only a published change can reach a test before its deadline."""
DEADLINE_S = 900.0

MakeWatcher = Callable[..., JobWatcher]


@pytest.fixture
def make_watcher(namespace: str) -> Iterator[MakeWatcher]:
    """Return a function that makes a watcher for a server, with the arguments of `JobWatcher`."""
    made: list[tuple[JobWatcher, Connection]] = []

    def make(url: str, retries: int = 3, **arguments: float) -> JobWatcher:
        settings = Settings(redis_url=url, namespace=namespace, _env_file=None)
        connection = Connection(settings, connect(url, retries=retries))
        watcher = JobWatcher(connection, **{"poll_s": NEVER_S, **arguments})
        made.append((watcher, connection))
        return watcher

    yield make
    for watcher, connection in made:
        watcher.close()
        connection.close()


@pytest.fixture
def watcher(make_watcher: MakeWatcher, redis_server: LocalRedisServer) -> JobWatcher:
    return make_watcher(redis_server.url)


@pytest.fixture
def records(client: redis.Redis, namespace: str) -> JobRecords:
    return JobRecords(client, namespace, retention_s=3600)


def _submit(records: JobRecords, *job_ids: str) -> None:
    request = JobRequest.parse({"prompt": "a", "seed": 1})
    records.submit([(job_id, request) for job_id in job_ids or ("j",)])


def _run(main: Awaitable[Any]) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await main

    return asyncio.run(run())


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call what blocks, so that the event loop runs meanwhile."""
    return await asyncio.to_thread(function, *arguments)


async def _until(found: Callable[[], Any]) -> Any:
    return await _call(until, found)


async def _follow(watcher: JobWatcher, job_id: str = "j") -> list[State]:
    """Return the states of a job until the iteration ends."""
    async with watcher.watch(job_id) as changes:
        return [status.state async for status in changes]


def _end(records: JobRecords, job_id: str = "j") -> None:
    start_attempt(records, job_id, "w1")
    records.succeed(job_id, "w1", RESULT, None)


def test_each_published_change_reaches_the_one_who_watches_until_the_job_ends(
    watcher: JobWatcher, records: JobRecords
) -> None:
    async def watch() -> list[JobStatus]:
        seen = []
        report = ProgressReport(job_id="j", attempt="w1", step=2, steps=4)
        steps = iter(
            (
                lambda: start_attempt(records, "j", "w1"),
                lambda: records.record_progress(report),
                lambda: records.succeed("j", "w1", RESULT, None),
            )
        )
        async with watcher.watch("j") as changes:
            async for status in changes:
                seen.append(status)
                await _call(next(steps, lambda: None))
        return seen

    _submit(records)
    seen = _run(watch())
    assert [(status.state, status.step) for status in seen] == [
        (State.QUEUED, 0),
        (State.RUNNING, 0),
        (State.RUNNING, 2),
        (State.SUCCEEDED, 2),
    ]


def test_a_job_that_has_ended_is_one_status(watcher: JobWatcher, records: JobRecords) -> None:
    _submit(records)
    _end(records)
    assert _run(_follow(watcher)) == [State.SUCCEEDED]


def test_all_who_watch_share_one_subscription_and_one_thread(
    watcher: JobWatcher, records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    channels = [changes_channel(namespace, job_id) for job_id in ("j", "k")]

    async def watch() -> tuple[list[list[State]], int]:
        threads = threading.active_count()
        following = [asyncio.create_task(_follow(watcher, "jk"[i % 2])) for i in range(200)]
        await asyncio.sleep(0)  # all have begun to watch
        more = threading.active_count() - threads
        await _until(lambda: dict(client.pubsub_numsub(*channels)) == dict.fromkeys(channels, 1))
        for job_id in ("j", "k"):
            await _call(_end, records, job_id)
        return await asyncio.gather(*following), more

    _submit(records, "j", "k")
    seen, threads = _run(watch())
    assert threads == 1
    assert len(seen) == 200
    assert all(states[-1] is State.SUCCEEDED for states in seen)
    until(lambda: dict(client.pubsub_numsub(*channels)) == dict.fromkeys(channels, 0))


@pytest.mark.parametrize("denied", ["publish", "subscribe"])
def test_a_change_that_is_not_heard_is_found_by_looking(
    make_watcher: MakeWatcher, tmp_path: Path, namespace: str, denied: str
) -> None:
    """Workers of an older release publish nothing, and their users may not."""
    with TcpServer(tmp_path / "deaf") as server:
        words = ("on", ">pw", "~*", "resetchannels", "+@all")
        server.client().execute_command("ACL", "SETUSER", "old", *words)
        full = f"redis://127.0.0.1:{server.port}/0"
        deaf = full.replace("//", "//old:pw@")
        watched, worked = (full, deaf) if denied == "publish" else (deaf, full)
        records = JobRecords(connect(worked), namespace, retention_s=3600)
        watcher = make_watcher(watched, poll_s=0.1)

        async def watch() -> list[State]:
            following = asyncio.create_task(_first_of(watcher, began := asyncio.Event()))
            await began.wait()
            await _call(_end, records)
            return await following

        _submit(records)
        assert _run(watch())[-1] is State.SUCCEEDED
        watcher.close()


async def _first_of(watcher: JobWatcher, began: asyncio.Event) -> list[State]:
    """Return the states of job `j`; say when the first is known."""
    states = []
    async with watcher.watch("j") as changes:
        async for status in changes:
            states.append(status.state)
            began.set()
    return states


def test_watches_that_are_cancelled_at_random_leave_no_subscription_and_no_connection(
    make_watcher: MakeWatcher, own_redis: LocalRedisServer, namespace: str
) -> None:
    client = connect(own_redis.url)
    records, watcher = JobRecords(client, namespace, 3600), make_watcher(own_redis.url)
    job_ids = [f"j{number}" for number in range(100)]
    channels = [changes_channel(namespace, job_id) for job_id in job_ids]
    drawn = random.Random(1)

    def subscriptions() -> int:
        return sum(number for _, number in client.pubsub_numsub(*channels))

    async def watch() -> None:
        following = [
            asyncio.create_task(_follow(watcher, job_id)) for job_id in [*job_ids, *job_ids]
        ]
        await _until(lambda: subscriptions() == 100)
        drawn.shuffle(following)
        for task in following[:150]:
            task.cancel()
            if drawn.random() < 0.5:
                await asyncio.sleep(0)
        for job_id in drawn.sample(job_ids, 50):
            await _call(_end, records, job_id)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    _submit(records, *job_ids)
    _submit(records)
    _end(records)
    _run(_follow(watcher))  # now its two connections are open
    until(lambda: subscriptions() == 0)
    before = len(client.client_list())
    for _ in range(2):
        _run(watch())
        until(lambda: subscriptions() == 0)
        assert len(client.client_list()) == before
        client.flushall()
        _submit(records, *job_ids)


def test_jobs_are_watched_over_tls(
    make_watcher: MakeWatcher, own_redis: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    context, trusted = make_certificate(tmp_path, "localhost")
    proxy = RedisProxy(own_redis.url.removeprefix("unix://"), context)
    url = f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={trusted}"
    records, watcher = JobRecords(connect(own_redis.url), namespace, 3600), make_watcher(url)

    async def watch() -> list[State]:
        following = asyncio.create_task(_first_of(watcher, began := asyncio.Event()))
        await began.wait()
        await _call(_end, records)
        return await following

    _submit(records)
    assert _run(watch())[-1] is State.SUCCEEDED
    watcher.close()
    proxy.close()


def test_a_watch_goes_on_after_a_failover(
    make_watcher: MakeWatcher, namespace: str, tmp_path: Path
) -> None:
    with SentinelPair(tmp_path) as pair:
        records = JobRecords(connect(pair.url, retries=RETRY_FOREVER), namespace, 3600)
        watcher = make_watcher(pair.url)

        async def watch() -> list[State]:
            following = asyncio.create_task(_first_of(watcher, began := asyncio.Event()))
            await began.wait()
            assert pair.master.client().wait(1, 60_000)
            await _call(pair.fail_over)
            await _call(_end, records)
            return await following

        _submit(records)
        assert _run(watch())[-1] is State.SUCCEEDED
        watcher.close()


def test_a_watch_goes_on_after_redis_was_restarted(
    make_watcher: MakeWatcher, own_redis: LocalRedisServer, namespace: str
) -> None:
    client = connect(own_redis.url)
    records, watcher = JobRecords(client, namespace, 3600), make_watcher(own_redis.url)

    async def watch() -> list[State]:
        following = asyncio.create_task(_first_of(watcher, began := asyncio.Event()))
        await began.wait()
        own_redis.kill()
        own_redis.start()
        await _call(_end, records)
        return await following

    _submit(records)
    assert _run(watch())[-1] is State.SUCCEEDED


def test_a_change_while_the_subscription_was_cut_is_read_afterwards(
    make_watcher: MakeWatcher, own_redis: LocalRedisServer, namespace: str
) -> None:
    client = connect(own_redis.url)
    records, watcher = JobRecords(client, namespace, 3600), make_watcher(own_redis.url)

    async def watch() -> int:
        channel = changes_channel(namespace, "j")
        async with watcher.watch("j") as changes:
            await anext(changes)
            await _until(lambda: client.pubsub_numsub(channel) == [(channel, 1)])
            with client.pipeline(transaction=True) as pipe:  # nobody subscribes in between
                pipe.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                pipe.hset(records.key("j"), mapping={"state": "running", "step": "1"})
                pipe.execute()
            return (await anext(changes)).step

    _submit(records)
    assert _run(watch()) == 1


def test_a_watch_ends_with_an_error_only_after_redis_was_away_for_long(
    make_watcher: MakeWatcher, own_redis: LocalRedisServer, namespace: str
) -> None:
    records = JobRecords(connect(own_redis.url), namespace, 3600)
    short = make_watcher(own_redis.url, 0, poll_s=0.05, outage_s=0.1)
    long = make_watcher(own_redis.url, 0, poll_s=0.05)

    async def watch() -> list[State]:
        began = [asyncio.Event(), asyncio.Event()]
        ending, lasting = (
            asyncio.create_task(_first_of(watcher, event))
            for watcher, event in zip((short, long), began, strict=True)
        )
        for event in began:
            await event.wait()
        own_redis.kill()
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            await ending
        with pytest.raises(BrokerUnavailable):
            await short.wait(["j"])
        own_redis.start()
        assert [status.state for status in await short.wait(["j"], 0)] == [State.QUEUED]
        await _call(_end, records)
        return await lasting

    _submit(records)
    assert _run(watch())[-1] is State.SUCCEEDED


def test_a_slow_consumer_gets_the_newest_status_only(
    watcher: JobWatcher, records: JobRecords
) -> None:
    async def watch() -> list[int]:
        async with watcher.watch("j") as changes:
            steps = [(await anext(changes)).step]
            for step in range(1, 51):
                report = ProgressReport(job_id="j", attempt="w1", step=step, steps=50)
                records.record_progress(report)
            await _until(lambda: changes.newest is not None and changes.newest.step == 50)
            steps.append((await anext(changes)).step)
            await _call(_end, records)
            return [*steps, *[status.step async for status in changes if status.done]]

    _submit(records)
    start_attempt(records, "j", "w1")
    assert _run(watch()) == [0, 50, 0]


def test_closing_ends_all_watches_and_says_so(
    watcher: JobWatcher, records: JobRecords, client: redis.Redis, namespace: str
) -> None:
    channel = changes_channel(namespace, "j")

    async def follow() -> JobChanges:
        async with watcher.watch("j") as changes:
            async for _ in changes:
                pass
        return changes

    async def watch() -> None:
        following = [asyncio.create_task(follow()) for _ in range(20)]
        waiting = asyncio.create_task(watcher.wait(["j"]))
        async with watcher.watch("j") as changes, watcher.watch("k") as later:
            await anext(changes)
            await _call(start_attempt, records, "k", "w1")
            async for status in later:
                if status.state is State.RUNNING:  # so what was read before has reached everybody
                    watcher.close()
        for ended in await asyncio.gather(*following):
            assert ended.closed
        [status] = await waiting
        assert not status.done
        assert (await follow()).closed
        with pytest.raises(BrokerUnavailable):
            await watcher.wait(["j"])

    _submit(records, "j", "k")
    _run(watch())
    until(lambda: client.pubsub_numsub(channel) == [(channel, 0)])


def test_an_unknown_a_deleted_and_an_unreadable_job_end_with_an_error(
    watcher: JobWatcher, records: JobRecords, client: redis.Redis
) -> None:
    async def watch() -> None:
        with pytest.raises(UnknownJob):
            await _follow(watcher, "never")
        for damage, error in (
            (partial(client.delete, records.key("j")), UnknownJob),
            (partial(client.hset, records.key("k"), "state", "odd"), UnreadableRecord),
            (partial(client.set, records.key("l"), "text"), UnreadableRecord),
        ):
            job_id = str(damage.args[0])[-1]
            async with watcher.watch(job_id) as changes, watcher.watch(job_id) as others:
                assert (await anext(changes)).state is State.QUEUED
                assert (await anext(others)).state is State.QUEUED
                await _call(damage)
                await _call(client.publish, *_published(records, job_id))
                for each in (changes, others):
                    with pytest.raises(error):
                        await anext(each)

    _submit(records, "j", "k", "l")
    _run(watch())


def _published(records: JobRecords, job_id: str) -> tuple[str, str]:
    namespace = records.key(job_id).partition(":")[0]
    return changes_channel(namespace, job_id), "running"


def test_waiting_ends_with_the_jobs_or_with_the_time(
    watcher: JobWatcher, records: JobRecords
) -> None:
    async def wait() -> None:
        statuses = await watcher.wait(["j", "k", "j"], 0)
        assert [(status.id, status.state) for status in statuses] == [
            ("j", State.QUEUED),
            ("k", State.QUEUED),
            ("j", State.QUEUED),
        ]
        waiting = asyncio.create_task(watcher.wait(["j", "k"], DEADLINE_S))
        await _call(_end, records, "k")
        await _call(_end, records, "j")
        assert [status.done for status in await waiting] == [True, True]
        assert await watcher.wait([]) == []
        with pytest.raises(UnknownJob):
            await watcher.wait(["j", "never"])
        with pytest.raises(InvalidRequest, match="must be a number"):
            await watcher.wait(["j"], float("nan"))

    _submit(records, "j", "k")
    _run(wait())

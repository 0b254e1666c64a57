"""What both commands `doctor` share: the lines of a report, and the checks of Redis and storage.

Input: the settings of a producer or worker. Output: findings, each a sentence that says what was
found or what to do.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeVar

from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.redis_client.connection import (
    check_connection,
    connect,
    server_of,
    translate_errors,
)
from imagefleet.shared.redis_client.memory import read_memory
from imagefleet.shared.redis_client.server_check import check_server, is_replica
from imagefleet.shared.settings.settings import Settings
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import mask_credentials, printable

if TYPE_CHECKING:
    from redis import Redis

_PINGS: Final = 20
_MAX_CLOCK_DIFFERENCE_S: Final = 2.0
_TEST_BYTES: Final = 1_000_000
_MAX_LINE: Final = 2_000

S = TypeVar("S", bound=Settings)


class Verdict(StrEnum):
    """What a check found."""

    OK = "ok"
    WARNING = "warn"  # a producer or worker runs all the same
    FAILURE = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    verdict: Verdict
    text: str

    def line(self, check: str) -> str:
        """Return the line of the report, safe for terminals and without passwords."""
        line = f"{self.verdict:<4}  {check:<9}  {self.text}"
        return printable(mask_credentials(line), _MAX_LINE)


def run_check(check: Callable[[S], Iterator[Finding]], settings: S) -> Iterator[Finding]:
    """Yield what `check` finds. An error that it raises is a failure."""
    try:
        yield from check(settings)
    except ImagefleetError as error:
        yield Finding(Verdict.FAILURE, str(error))
    except Exception as error:  # a report with a gap is better than none
        yield Finding(Verdict.FAILURE, f"{type(error).__name__}: {error}")


def check_variables(warnings: Iterator[str]) -> Iterator[Finding]:
    """Yield a warning for each misspelt variable. The values were checked when they were read."""
    found = list(warnings)
    yield from (Finding(Verdict.WARNING, warning) for warning in found)
    if not found:
        yield Finding(Verdict.OK, "all values are valid, and no variable is misspelt")


def check_redis(settings: Settings, *, runs_celery: bool) -> Iterator[Finding]:
    """Check Redis: its settings, its memory, the rights of this user, its speed and its clock.

    Raises:
        BrokerUnavailable: Redis does not answer.
        ConfigurationError: Redis would lose jobs, or this user lacks rights.
    """
    url = settings.redis_url.get_secret_value()
    with connect(url) as client, translate_errors(url):
        check_connection(client, url)
        warnings = check_server(client, url, settings.namespace, runs_celery=runs_celery)
        for warning in warnings:
            yield Finding(Verdict.WARNING, warning)
        if is_replica(client):
            text = (
                f"Redis at {server_of(url)} is a read-only replica, which takes no jobs; use the "
                "address of its master, or sentinel://"
            )
            yield Finding(Verdict.FAILURE, text)
        memory = read_memory(client)
        if memory is not None and memory.is_almost_full:
            text = f"{memory}; a full Redis accepts no jobs: docs/operations.md has what jobs need"
            yield Finding(Verdict.WARNING, text)
        found = [_describe_server(client), *([] if memory is None else [str(memory)])]
        text = f"{server_of(url)}: {', '.join(found)}, {_ping_ms(client):.2f} ms a command"
        yield Finding(Verdict.OK, text)
        seconds, microseconds = client.time()
        ahead_s = time.time() - (seconds + microseconds / 1e6)
        if abs(ahead_s) > _MAX_CLOCK_DIFFERENCE_S:
            text = f"this host's clock is {ahead_s:+.0f} s off that of Redis; let NTP set both"
            yield Finding(Verdict.WARNING, text)


def _describe_server(client: "Redis") -> str:
    """Return the version of a Redis and what survives its crash, as far as it says so."""
    import redis

    try:
        info = client.info()
    except redis.ResponseError:
        return "INFO is forbidden"
    name = f"{info.get('server_name', 'redis')} {info.get('valkey_version', info['redis_version'])}"
    if not info.get("aof_enabled"):
        return f"{name}, no append-only file"
    try:
        fsync = client.config_get("appendfsync")["appendfsync"]
    except (redis.ResponseError, KeyError):
        fsync = "unknown"
    return f"{name}, append-only file, appendfsync {fsync}"


def _ping_ms(client: "Redis") -> float:
    times = []
    for _ in range(_PINGS):
        started = time.perf_counter()
        client.ping()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e3


def check_storage(store: ObjectStore) -> Iterator[Finding]:
    """Write, read and delete 1 MB.

    Raises:
        ImagefleetError: it cannot be written or read.
    """
    store.check()
    key, data = f"check-{os.urandom(8).hex()}", os.urandom(_TEST_BYTES)
    try:
        started = time.perf_counter()
        store.put(key, data, "application/octet-stream")
        put_s = time.perf_counter() - started
        started = time.perf_counter()
        store.get(key)
        get_s = time.perf_counter() - started
    finally:
        undeleted = _delete(store, key)
    text = f"{store.url}: 1 MB is written in {put_s:.3f} s and read in {get_s:.3f} s"
    yield Finding(Verdict.OK, text)
    if undeleted is not None:
        text = f"cannot delete, which `delete` and `keep` need; {key} stays: {undeleted}"
        yield Finding(Verdict.WARNING, text)


def _delete(store: ObjectStore, key: str) -> ImagefleetError | None:
    try:
        store.delete(key)
    except ImagefleetError as error:
        return error
    return None

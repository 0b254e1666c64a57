"""Compare settings of a worker with the limits of its host, its platform and its Redis.

Input: settings and limits. Output: findings of the doctor. A limit under which something cannot
work is a failure; one under which it is slow or risky is a warning.
"""

import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from ipaddress import ip_address
from typing import Any, Final

from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.jobs.worker_status import WorkerRegistry
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.process.http_server import MAX_CONNECTIONS
from imagefleet.shared.redis_client.connection import connect_lanes, translate_errors
from imagefleet.shared.settings.doctor import Finding, Verdict
from imagefleet.shared.text.printable import counted
from imagefleet.worker.bulk.writable_formats import writable_shard_formats
from imagefleet.worker.outbound.address_policy import AllowList
from imagefleet.worker.process.systemd import UnitLimits
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.drain import DRAIN_GRACE_S
from imagefleet.worker.webhooks.receiver_limits import MAX_SENDERS

_OWN_FILES: Final = 48
"""Files of an idle worker: at most 37 were counted, with the local folder as its store."""
_CONNECTIONS_PER_WORKER: Final = 10
"""A worker opens at most so many to Redis; tests/integration/test_connections.py counts them."""
_CONNECTIONS_PER_LANE: Final = 4
"""It opens at most so many to each lane of a cluster: two of its jobs, one of its claims and one of
its heartbeats."""
_OTHER_CONNECTIONS: Final = 5
"""It counts those to Redis of a producer, an exporter and an operator."""
_UPLOADS: Final = 64
"""A client of S3 or of Google Cloud Storage opens at most so many connections."""
_ALMOST_ALL: Final = 0.8
_SMALLEST_PREFIX: Final = {4: 8, 6: 7}
"""The private networks 10.0.0.0/8 and fc00::/7 are the largest that a fleet may be in."""
_METADATA: Final = ip_address("169.254.169.254")
"""Clouds answer here with the credentials of the host."""
_SYSTEMD_GRACE_S: Final = 90.0
"""It is systemd's own default of `TimeoutStopSec`. Kubernetes leaves 30 s and Docker 10."""


def check_open_files(settings: WorkerSettings, limit: int | None = None) -> Iterator[Finding]:
    """Compare the number of files that this process may open with what a worker needs.

    Args:
        limit: the number. None: ask the kernel.
    """
    if limit is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = 2**31
    uploads = min(_UPLOADS, settings.post_threads)
    connections = _CONNECTIONS_PER_WORKER
    if settings.in_cluster:
        connections = _CONNECTIONS_PER_LANE * settings.lanes
    least = _OWN_FILES + connections + uploads
    most = least + MAX_SENDERS + 2 * settings.input_image_fetches
    most += 0 if settings.metrics_port is None else MAX_CONNECTIONS
    text = f"{limit:,} files may be open (ulimit -n, LimitNOFILE)"
    if limit < least:
        advice = (
            f"Redis and {counted(uploads, 'upload')} at a time need {least}; allow {most} or more"
        )
        yield Finding(Verdict.FAILURE, f"{text}: {advice}")
    elif limit < most:
        advice = f"with callbacks, input images and metrics a worker may need {most}"
        yield Finding(Verdict.WARNING, f"{text}: {advice}, and fails what it cannot open")
    else:
        yield Finding(Verdict.OK, f"{text}, and a worker needs at most {most}")


def check_clients(settings: WorkerSettings) -> Iterator[Finding]:
    """Compare the connections of the fleet, with this worker, with what Redis accepts: each master
    of a cluster those to the lanes that it has.

    Raises:
        BrokerUnavailable: Redis does not answer.
    """
    import redis

    url = settings.redis_url.get_secret_value()
    connected = connect_lanes(url, settings.namespace, lanes=settings.lanes)
    with closing(connected) as lanes, translate_errors(url):
        first = lanes.first
        workers = len(WorkerRegistry(first.client, first.namespace).alive()) + 1
        own: Counter[str] = Counter()
        limits: dict[str, int] = {}
        for lane in lanes:
            try:
                info: Mapping[str, Any] = lane.client.info()
            except redis.RedisError:
                continue  # another check says that INFO is forbidden, or that a lane is down
            if "maxclients" in info:
                own[info["run_id"]] += 1
                limits[info["run_id"]] = int(info["maxclients"])
    for server, limit in limits.items():
        each = own[server] * _CONNECTIONS_PER_LANE if len(lanes) > 1 else _CONNECTIONS_PER_WORKER
        yield from judge_clients(limit, workers, each)


def judge_clients(
    maxclients: int, workers: int, each: int = _CONNECTIONS_PER_WORKER
) -> Iterator[Finding]:
    """Compare the setting of Redis with the connections of this many workers, `each` of them with
    at most so many, and of their producers. Yield nothing if it is enough."""
    needed = each * workers + _OTHER_CONNECTIONS
    text = (
        f"Redis has maxclients {maxclients}, and {counted(workers, 'worker')} with a producer and "
        f"an exporter open up to {needed} connections"
    )
    if maxclients < needed:
        yield Finding(Verdict.FAILURE, f"{text}, so some are refused; raise maxclients")
    elif needed > _ALMOST_ALL * maxclients:
        yield Finding(Verdict.WARNING, f"{text}; raise maxclients before the fleet grows")


def check_allowed_networks(settings: WorkerSettings) -> Iterator[Finding]:
    """Warn of networks in the allow list that are larger than a private network, or hold the
    metadata of a cloud: whoever submits jobs reaches them."""
    for network in AllowList.parse(settings.callback_allow).networks:
        if network.prefixlen < _SMALLEST_PREFIX[network.version]:
            what = "this switches the check of addresses off, so that producers reach private hosts"
        elif _METADATA in network:
            what = f"producers reach {_METADATA}, where clouds keep the credentials of the host"
        else:
            continue
        yield Finding(
            Verdict.WARNING,
            f"IMAGEFLEET_CALLBACK_ALLOW holds {network}: {what}; name those of your receivers",
        )


def check_post_threads(settings: WorkerSettings, capacity: int) -> Iterator[Finding]:
    """Compare the threads that encode and upload with the images of a full batch. Yield nothing if
    they are enough."""
    threads = settings.post_threads
    text = f"IMAGEFLEET_POST_THREADS={threads}, and a full batch has {counted(capacity, 'image')}"
    if threads < capacity:
        what = f"a worker has {counted(threads, 'job')} at a time, too few to fill a batch"
    elif threads < 3 * capacity:
        what = "the devices wait for uploads"
    else:
        return
    yield Finding(Verdict.WARNING, f"{text}: {what}; set it to {3 * capacity} or more")


def check_stop(settings: WorkerSettings, unit: UnitLimits) -> Iterator[Finding]:
    """Compare the time of a drain with the time that the platform leaves a worker."""
    drain_s = settings.drain_s
    known = {
        f"IMAGEFLEET_STOP_TIMEOUT_S={settings.stop_timeout_s}": settings.stop_timeout_s,
        f"TimeoutStopSec={unit.stop_s} of systemd": unit.stop_s,
    }
    limits = [(seconds, name) for name, seconds in known.items() if seconds is not None]
    text = f"IMAGEFLEET_DRAIN_S={drain_s:g}, and a drain may take {DRAIN_GRACE_S:g} s longer"
    if not limits:
        if drain_s + DRAIN_GRACE_S > _SYSTEMD_GRACE_S:
            advice = "systemd leaves 90 s by default, Kubernetes 30 and Docker 10"
            yield Finding(
                Verdict.WARNING,
                f"{text}; {advice}: set IMAGEFLEET_STOP_TIMEOUT_S to what yours does",
            )
        return
    seconds, name = min(limits)
    if seconds <= drain_s:
        what = "the platform kills the worker first, and its jobs count a delivery"
        yield Finding(Verdict.FAILURE, f"{text}, but {name}: {what}; shorten the drain")
    elif seconds < drain_s + DRAIN_GRACE_S:
        what = f"choose at least {drain_s + DRAIN_GRACE_S:g} s"
        yield Finding(Verdict.WARNING, f"{text}, but {name}: {what}")
    else:
        yield Finding(Verdict.OK, f"{text}: {name} is enough")


def check_watchdog(settings: WorkerSettings, unit: UnitLimits) -> Iterator[Finding]:
    """Compare systemd's watchdog with the heartbeats that feed it, four in the length of a lease.
    Yield nothing if there is none, or it is long enough."""
    if unit.watchdog_s is None:
        return
    lease_s = settings.lease_s
    text = f"WatchdogSec={unit.watchdog_s:g} of systemd and IMAGEFLEET_LEASE_S={lease_s:g}"
    if unit.watchdog_s < lease_s / 2:
        what = "a heartbeat that is late once ends a healthy worker; choose more than half a lease"
        yield Finding(Verdict.FAILURE, f"{text}: {what}")
    elif unit.watchdog_s < lease_s:
        what = "a worker that still has its lease may be ended; choose more than a lease"
        yield Finding(Verdict.WARNING, f"{text}: {what}")


def check_datasets(_: WorkerSettings) -> Iterator[Finding]:
    """Say which formats of datasets this host can write."""
    formats = writable_shard_formats()
    yield Finding(Verdict.OK, f"formats that can be written: {', '.join(formats)}")
    for lacking in (each for each in BulkFormat if each not in formats):
        text = f"no dataset of format {lacking} can be written; {how_to_install('dataset')}"
        yield Finding(Verdict.WARNING, text)

"""Connect a worker to Redis, with as few connections as its threads need.

Input: the settings. Output: the lanes, once for each of two kinds of clients. A server serves as
many workers as its `maxclients` allows, so each connection counts.
"""

import logging
from contextlib import closing, suppress
from functools import partial
from typing import Final

import redis

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.cluster_check import check_cluster
from imagefleet.shared.redis_client.connection import (
    RETRY_FOREVER,
    connect_lanes,
    server_of,
    translate_errors,
)
from imagefleet.shared.redis_client.lanes import Lanes
from imagefleet.shared.redis_client.server_check import check_server
from imagefleet.worker.settings.worker_settings import WorkerSettings

log = logging.getLogger(__name__)

MAX_SHARED_CONNECTIONS: Final = 4
"""Connections of all threads that start jobs, store images, report progress and send callbacks."""

MAX_SHARED_CONNECTIONS_OF_LANE: Final = 2
"""The same to each lane of a cluster, which holds a share of the jobs."""


def connect_clients(settings: WorkerSettings) -> tuple[Lanes, Lanes]:
    """Return the lanes with clients that never retry, and with ones that retry until Redis is back.

    The first are those of lease keepers and of claims, which so never wait for a connection. The
    threads of the second share a few.

    Raises:
        BrokerUnavailable: Redis does not answer.
        ConfigurationError: Redis refuses the credentials, or cannot serve a fleet.
    """
    url = settings.redis_url.get_secret_value()
    connect_all = partial(connect_lanes, url, settings.namespace, lanes=settings.lanes)
    with closing(connect_all()) as lanes:  # a connection that is lost once does not end the start
        _check_credentials(lanes.first.client, url, must_answer=not settings.in_cluster)
        if settings.in_cluster:
            warnings = check_cluster(lanes, url, settings.namespace)
        else:
            warnings = check_server(lanes.first.client, url, settings.namespace)
    for warning in warnings:
        log.warning("%s", warning)
    most = MAX_SHARED_CONNECTIONS_OF_LANE if settings.in_cluster else MAX_SHARED_CONNECTIONS
    return connect_all(retries=0), connect_all(retries=RETRY_FOREVER, max_connections=most)


def _check_credentials(client: redis.Redis, url: str, *, must_answer: bool) -> None:
    """Raise ConfigurationError if Redis refuses the credentials: waiting does not help. Raise
    BrokerUnavailable if it does not answer, and must."""
    with translate_errors(url) if must_answer else suppress(redis.RedisError):
        try:
            client.ping()
        except redis.AuthenticationError as error:
            raise ConfigurationError(
                f"Redis at {server_of(url)} refuses the credentials: {error}"
            ) from None

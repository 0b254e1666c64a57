"""Connect a worker to Redis, with as few connections as its threads need.

Input: the settings. Output: the lanes, once for each of two kinds of clients. A server serves as
many workers as its `maxclients` allows, so each connection counts.
"""

import logging
from functools import partial
from typing import Final

import redis

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.redis_client.connection import (
    RETRY_FOREVER,
    connect,
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


def connect_clients(settings: WorkerSettings) -> tuple[Lanes, Lanes]:
    """Return the lanes with clients that never retry, and with ones that retry until Redis is back.

    The first are those of lease keepers and of claims, which so never wait for a connection. The
    threads of the second share a few.

    Raises:
        BrokerUnavailable: Redis does not answer.
        ConfigurationError: Redis refuses the credentials, or cannot serve a fleet.
    """
    url = settings.redis_url.get_secret_value()
    with connect(url) as client:  # a connection that is lost once does not end the start
        _check_credentials(client, url)
        for warning in check_server(client, url, settings.namespace):
            log.warning("%s", warning)
    connect_all = partial(connect_lanes, url, settings.namespace)
    shared = connect_all(retries=RETRY_FOREVER, max_connections=MAX_SHARED_CONNECTIONS)
    return connect_all(retries=0), shared


def _check_credentials(client: redis.Redis, url: str) -> None:
    """Raise ConfigurationError if Redis refuses the credentials: waiting does not help."""
    with translate_errors(url):
        try:
            client.ping()
        except redis.AuthenticationError as error:
            raise ConfigurationError(
                f"Redis at {server_of(url)} refuses the credentials: {error}"
            ) from None

"""Connect a worker to Redis, with as few connections as its threads need.

The settings come in, two clients come out. A server serves so many workers as its `maxclients`
allows, so each connection counts.
"""

import logging
from typing import Final

import redis

from imagefleet.shared.redis_client.connection import RETRY_FOREVER, check_connection, connect
from imagefleet.shared.redis_client.server_check import check_server
from imagefleet.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

MAX_SHARED_CONNECTIONS: Final = 4
"""Connections of all threads that start jobs, store images, report progress and send callbacks."""


def connect_clients(settings: WorkerSettings) -> tuple[redis.Redis, redis.Redis]:
    """Return a client that never retries, and one that retries until Redis is back.

    The first is that of the lease keeper and of claims, which so never wait for a connection. The
    threads of the second share a few.

    Raises:
        ImagefleetError: Redis does not answer, or cannot serve a fleet.
    """
    url = settings.redis_url.get_secret_value()
    with connect(url) as client:  # a connection that is lost once does not end the start
        check_connection(client, url)
        for warning in check_server(client, url, settings.namespace):
            log.warning("%s", warning)
    shared = connect(url, retries=RETRY_FOREVER, max_connections=MAX_SHARED_CONNECTIONS)
    return connect(url, retries=0), shared

"""Connect to the master of one slot of a cluster, also when reconnecting during a command.

A slot moves to another server when its master dies, or when an operator moves it. This connection
treats both like a lost connection: redis-py's retry then decides whether a command is repeated.
"""

from typing import Any

import redis
from redis.connection import Connection, SSLConnection
from redis.exceptions import MovedError

from imagefleet.shared.redis_client.cluster_map import ClusterMap


class SlotConnection(Connection):
    """This connection asks the cluster for the master of its slot before each connect.

    Args:
        cluster: what is asked.
        slot: number of the slot.
    """

    def __init__(self, *, cluster: ClusterMap, slot: int, **options: Any) -> None:
        self._cluster = cluster
        self._slot = slot
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """Connect to the master of the slot. A command calls this method if it has no socket."""
        if getattr(self, "_sock", None):  # redis-py types it as always None
            return
        if retry_socket_connect:
            self.retry.call_with_retry(
                lambda: self._connect_to_master(check_health), lambda error: None
            )
        else:
            self._connect_to_master(check_health)

    def _connect_to_master(self, check_health: bool) -> None:
        self.host, self.port = self._cluster.master_of(self._slot)
        super().connect_check_health(check_health, retry_socket_connect=False)

    def read_response(self, *args: Any, **options: Any) -> Any:
        """Read an answer. Close the connection if the server says that the slot is elsewhere; it
        has not executed the command."""
        try:
            return super().read_response(*args, **options)
        except MovedError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise redis.ConnectionError(f"slot {error.slot_id} has moved") from error


class SslSlotConnection(SlotConnection, SSLConnection):
    """The same over TLS. The certificate must match the names that the servers announce."""

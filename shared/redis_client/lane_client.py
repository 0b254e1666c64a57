"""The client of one lane of a cluster: an ordinary client of the master of its slot.

While a slot is moved key by key, a script that derives a key from others may find that it is gone,
after it has written others. But a server starts no script there that declares a key which it does
not have. So this client declares one more key in each call of a script, which never exists: no
script runs while its slot is moved key by key. A slot that is moved as a whole (`CLUSTER
MIGRATESLOTS` of Valkey 9) refuses scripts for a moment only.
"""

from typing import TYPE_CHECKING, Any, Final

from redis import ConnectionPool, Redis
from redis.client import Pipeline

if TYPE_CHECKING:
    from redis.commands.core import Script

_DROP_LAST_KEY: Final = "KEYS[#KEYS] = nil  -- it never exists; see lane_client.py\n"


def lane_client(pool: ConnectionPool, missing_key: str) -> Redis:
    """Return a client that uses the connections of `pool`, which it closes with itself.

    Args:
        missing_key: a key of the lane's slot that never exists.
    """
    client = _LaneClient(connection_pool=pool)
    client.auto_close_connection_pool = True
    client.missing_key = missing_key
    return client


class _LanePipeline(Pipeline):
    """A pipeline that names the missing key in each call of a script."""

    missing_key: str

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Call a script that `_LaneClient.register_script` made."""
        return super().evalsha(*_with_key(self.missing_key, sha, numkeys, keys_and_args))


class _LaneClient(Redis):
    """The client names a key that never exists in each call of a script."""

    missing_key: str

    def register_script(self, script: Any) -> "Script":
        """Return a script that does not see the missing key."""
        return super().register_script(_DROP_LAST_KEY + script)

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any:
        """Call a script that `register_script` made."""
        return super().evalsha(*_with_key(self.missing_key, sha, numkeys, keys_and_args))

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:
        """Return a pipeline for the same scripts."""
        pipe = _LanePipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipe.missing_key = self.missing_key
        return pipe


def _with_key(key: str, sha: str, numkeys: int, keys_and_args: tuple[Any, ...]) -> tuple[Any, ...]:
    return sha, numkeys + 1, *keys_and_args[:numkeys], key, *keys_and_args[numkeys:]

"""Server-side scripts: each a Lua file beside the module that calls it.

Every script may use what `queue.lua` defines. redis-py sends a script's digest, and its text once
more whenever the server does not know it.
"""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script


def script(client: "Redis", package: str | None, name: str) -> "Script":
    """`name`.lua of `package` (the caller's `__package__`). Sends nothing before it is called."""
    assert package is not None
    return client.register_script(f"{_read('shared', 'queue')}\n{_read(package, name)}")


@cache
def _read(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.lua").read_text()

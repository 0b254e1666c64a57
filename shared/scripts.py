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


def script(client: "Redis", package: str | None, *names: str) -> "Script":
    """`names`.lua of `package` (the caller's `__package__`) one after the other: each may use what
    those before it define. Sends nothing before it is called."""
    assert package is not None
    parts = [_read("shared", "queue"), *(_read(package, name) for name in names)]
    return client.register_script("\n".join(parts))


@cache
def _read(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.lua").read_text()

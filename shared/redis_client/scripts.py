"""Server-side scripts: each is a Lua file beside the module that calls it.

Every script may use the definitions of `queue.lua` and `changes.lua`, and those of `outbox.lua` if
it asks for them. redis-py sends only the digest of a script, and its text if the server does not
know it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script

_MAX_UNKNOWN: Final = 2
"""How often in a row the server may not know a script: at its first call, and after a restart."""


def load_script(
    client: "Redis", package: str | None, *names: str, outbox: bool = False
) -> "Script":
    """Return the script made of the files `names`.lua of `package` (the caller's `__package__`).

    The files are joined in this order, so each may use the definitions of those before it. Nothing
    is sent to the server before the script is called.

    Args:
        outbox: whether the script uses the definitions of `outbox.lua`.
    """
    assert package is not None
    definitions = ["queue", "changes", *(["outbox"] if outbox else [])]
    parts = [
        *(_read("imagefleet.shared.redis_client", name) for name in definitions),
        *(_read(package, name) for name in names),
    ]
    return client.register_script("\n".join(parts))


def call_many(
    script: "Script", client: "Redis", calls: Iterable[tuple[Sequence[str], Sequence[Any]]]
) -> list[Any]:
    """Call a script with each (keys, arguments) of `calls` in one round trip. Return the answers.

    The script must be idempotent. If the server does not know it, or if it restarts or fails over
    after the script was sent, all calls are repeated.
    """
    from redis.exceptions import NoScriptError

    calls = list(calls)
    for _ in range(_MAX_UNKNOWN):
        try:
            return _call_in_pipeline(script, client, calls)
        except NoScriptError:
            client.script_load(script.script)
    return _call_in_pipeline(script, client, calls)


def _call_in_pipeline(
    script: "Script", client: "Redis", calls: list[tuple[Sequence[str], Sequence[Any]]]
) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        for keys, args in calls:
            pipe.evalsha(script.sha, len(keys), *keys, *args)
        return pipe.execute()


@cache
def _read(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.lua").read_text()

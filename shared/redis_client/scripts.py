"""Server-side scripts: each a Lua file beside the module that calls it.

Every script may use what `queue.lua` defines. redis-py sends a script's digest, and its text once
more whenever the server does not know it.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis import Redis
    from redis.commands.core import Script


def script(client: "Redis", package: str | None, *names: str) -> "Script":
    """`names`.lua of `package` (the caller's `__package__`) one after the other: each may use what
    those before it define. Sends nothing before it is called."""
    assert package is not None
    parts = [
        _read("imagefleet.shared.redis_client", "queue"),
        *(_read(package, name) for name in names),
    ]
    return client.register_script("\n".join(parts))


def call_all(
    called: "Script", client: "Redis", calls: Iterable[tuple[Sequence[str], Sequence[Any]]]
) -> list[Any]:
    """The answers to many calls (keys, arguments) of one script, in one round trip.

    A pipeline asks the server beforehand whether it knows the script. One that restarts or fails
    over under it does not any more, so it is asked again: the script must end where it started if
    it happens twice.
    """
    from redis.exceptions import NoScriptError

    calls = list(calls)
    try:
        return _in_one_trip(called, client, calls)
    except NoScriptError:
        return _in_one_trip(called, client, calls)


def _in_one_trip(
    called: "Script", client: "Redis", calls: list[tuple[Sequence[str], Sequence[Any]]]
) -> list[Any]:
    with client.pipeline(transaction=False) as pipe:
        for keys, args in calls:
            called(keys=keys, args=args, client=pipe)
        return pipe.execute()


@cache
def _read(package: str, name: str) -> str:
    return files(package).joinpath(f"{name}.lua").read_text()

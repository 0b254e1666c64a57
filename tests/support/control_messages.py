"""Messages on the channel of Celery's remote control: commands, and drawn rubbish."""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery import Celery
from celery.worker.control import Panel

from imagefleet.shared.redis_client.connection import celery_url
from tests.support.hostile_messages import encode_body

ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "add_consumer": {"queue": "stray"},
    "autoscale": {"max": 9, "min": 1},
    "cancel_consumer": {"queue": "stray"},
    "election": {"id": "1", "topic": "a", "action": {"method": "shutdown"}},
    "hello": {"from_node": "other@host", "revoked": {"a": 1}},
    "objgraph": {"num": 10},
    "pool_grow": {"n": 3},
    "pool_restart": {"modules": ["antigravity"], "reload": True},
    "pool_shrink": {"n": 99},
    "query_task": {"ids": ["a", "b"]},
    "rate_limit": {"task_name": "imagefleet.render", "rate_limit": "1/h"},
    "revoke": {"task_id": ["no-such-job"], "terminate": True, "signal": "SIGKILL"},
    "revoke_by_stamped_headers": {"headers": {"a": "b"}, "terminate": True},
    "terminate": {"signal": "SIGKILL", "task_id": "no-such-job"},
    "time_limit": {"task_name": "imagefleet.render", "hard": 0.001, "soft": 0.001},
}
"""What Celery's commands take, where it is more than nothing."""


def remote_control_app(url: str, namespace: str) -> Celery:
    """Return an app whose remote control reaches the workers of this namespace."""
    app = Celery(broker=celery_url(url), set_as_current=False)
    app.conf.control_exchange = namespace
    return app


def celery_commands() -> list[str]:
    """Return the name of every command that Celery's workers know, but for `shutdown`."""
    return sorted(set(Panel.data) - {"shutdown"})


def envelope(command: Any, **changed: Any) -> bytes:
    """Return `command` as kombu publishes it, with these parts of its envelope changed."""
    properties = {
        "body_encoding": "base64",
        "delivery_info": {"exchange": "x", "routing_key": ""},
        "delivery_mode": 1,
        "delivery_tag": "t",
        "priority": 0,
    }
    whole = {
        "body": encode_body(command),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"clock": 1, "expires": 0},
        "properties": properties,
    }
    return json.dumps({**whole, **changed}).encode()


_DEEP: Final = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
_RUBBISH: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 2**70, 1.5, float("nan"), float("inf"), "", "x", "\x00", "\ud800",
    "x" * 9_000, [], [None], [[]], {}, {"a": None}, {"__type__": "datetime", "__value__": "never"},
    {"__type__": "decimal", "__value__": []}, {"__type__": "uuid", "__value__": "x"},
)  # fmt: skip
_BYTES: Final = (
    b"", b"\x00", b"null", b"[]", b"{}", b"true", b'"x"', b"{", b"\xff\xfe", b"NaN", b"1e999",
    b'{"properties": null}', b'{"body": null}', _DEEP, b"[" * 200_000, b"9" * 10_000,
    b"x" * 100_000, envelope(None), envelope([]), envelope({}), envelope({"method": None}),
)  # fmt: skip


def drawn_messages(seed: int, count: int) -> list[bytes]:
    """Return `count` messages: bytes of no form, envelopes and commands with wrong parts, and
    Celery's commands with wrong arguments. None is a valid `shutdown`."""
    draw = random.Random(seed)
    kinds: list[Callable[[random.Random], bytes]] = [
        lambda draw: draw.choice(_BYTES),
        _cut,
        _wrong_envelope,
        _wrong_command,
        _wrong_arguments,
        _flipped,
    ]
    return [draw.choice(kinds)(draw) for _ in range(count)]


def _command(draw: random.Random) -> dict[str, Any]:
    method = draw.choice([*celery_commands(), "no_such_command", ""])
    reply_to = {"exchange": draw.choice(["reply.celery.pidbox", "x"]), "routing_key": "k"}
    return {
        "method": method,
        "arguments": dict(ARGUMENTS.get(method, {})),
        "destination": draw.choice([None, ["nobody@nowhere"]]),
        "pattern": draw.choice([None, "*", "(a+)+$"]),
        "matcher": draw.choice([None, "glob", "pcre"]),
        "ticket": "1",
        "reply_to": draw.choice([None, reply_to]),
    }


def _cut(draw: random.Random) -> bytes:
    whole = envelope(_command(draw))
    return whole[: draw.randrange(len(whole))]


def _flipped(draw: random.Random) -> bytes:
    whole = bytearray(envelope(_command(draw)))
    for _ in range(draw.randrange(1, 9)):
        whole[draw.randrange(len(whole))] = draw.randrange(256)
    return bytes(whole)


def _wrong_envelope(draw: random.Random) -> bytes:
    part = draw.choice(["body", "content-encoding", "content-type", "headers", "properties"])
    return envelope(_command(draw), **{part: draw.choice(_RUBBISH)})


def _wrong_command(draw: random.Random) -> bytes:
    command = _command(draw)
    for part in draw.sample(sorted(command), draw.randrange(1, 4)):
        command[part] = draw.choice(_RUBBISH)
    return envelope(command)


def _wrong_arguments(draw: random.Random) -> bytes:
    command = _command(draw)
    names = [*command["arguments"], draw.choice(["state", "kwargs", "self", "x"])]
    command["arguments"] = {name: draw.choice(_RUBBISH) for name in names}
    return envelope(command)

"""Define the cases of the fuzzer, and store them in a file that can be replayed.

A case is one request, one raw message, one answer of a hostile server, one message of the remote
control, one damaged key or one file of weights. This module uses no worker.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

ID: Final = "@ID@"
"""Stands for the id of the case in a message, before the case has one."""

LIST_RECORD: Final = {"a list": "and no hash"}


@dataclass(frozen=True, kw_only=True)
class RequestCase:
    """A request case is a job that a producer submits."""

    id: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class MessageCase:
    """A message case is an element of a queue's Redis list."""

    id: str
    message: bytes
    queue: str
    """Name of the Redis list after the namespace, with the suffix of its priority."""
    record: Mapping[str, str] | None = None
    """Fields of the record of job `id`, which exists before the message; None: no record.
    `LIST_RECORD`: the key of the record holds a list."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an answer: bytes, how often they are sent, and the pause after each time."""

    data: bytes
    repeat: int = 1
    pause_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AnswerCase:
    """An answer case is a job whose image server or callback receiver answers with `parts`."""

    id: str
    role: str
    """`image`, `mask_image`, `latents` or `callback`; `stored latents` are in the store, not at a
    server."""
    parts: Sequence[Part]
    hang_s: float = 0.0
    """Seconds that the server waits before it closes the connection."""
    reset: bool = False
    """Whether the server resets the connection instead of closing it."""


@dataclass(frozen=True, kw_only=True)
class ControlCase:
    """A control case is a message on the channel of Celery's remote control."""

    id: str
    control: bytes


@dataclass(frozen=True, kw_only=True)
class KeyCase:
    """A key case is a key of Redis with rubbish in it, which commands read."""

    id: str
    key: str
    """Name of the key after the namespace. It may hold `ID`."""
    kind: str
    """`hash`, `zset`, `list`, `set` or `string`."""
    fields: Mapping[str, str]
    """What is added to a hash or, with scores, to a sorted set; the names of other entries."""


@dataclass(frozen=True, kw_only=True)
class WeightsCase:
    """A weights case is a file that the setting `lora`, `job_lora` or `textual_inversion` names."""

    id: str
    setting: str
    model: str
    """The checkpoint of `tests/fixtures/parity` that the file may fit: `older` or `xl`."""
    data: bytes


Case: TypeAlias = RequestCase | MessageCase | AnswerCase | ControlCase | KeyCase | WeightsCase


def dump_cases(cases: Sequence[Case], path: Path, **about: object) -> None:
    """Write cases to a file for `load_cases`. Bytes become the Latin-1 text of the same codes."""
    path.write_text(json.dumps({**about, "cases": [_dump(case) for case in cases]}, indent=1))


def load_cases(path: Path) -> list[Case]:
    """Read the cases of a file that `dump_cases` wrote."""
    return [_load(fields) for fields in json.loads(path.read_text())["cases"]]


def _dump(case: Case) -> dict[str, Any]:
    if isinstance(case, RequestCase):
        return {"id": case.id, "parameters": dict(case.parameters)}
    if isinstance(case, MessageCase):
        message = case.message.decode("latin-1")
        return {"id": case.id, "message": message, "queue": case.queue, "record": case.record}
    if isinstance(case, ControlCase):
        return {"id": case.id, "control": case.control.decode("latin-1")}
    if isinstance(case, KeyCase):
        return {"id": case.id, "key": case.key, "kind": case.kind, "fields": dict(case.fields)}
    if isinstance(case, WeightsCase):
        data = case.data.decode("latin-1")
        return {"id": case.id, "setting": case.setting, "model": case.model, "data": data}
    parts = [[part.data.decode("latin-1"), part.repeat, part.pause_s] for part in case.parts]
    return {
        "id": case.id,
        "role": case.role,
        "parts": parts,
        "hang_s": case.hang_s,
        "reset": case.reset,
    }


def _load(fields: dict[str, Any]) -> Case:
    if "parameters" in fields:
        return RequestCase(**fields)
    if "message" in fields:
        return MessageCase(**{**fields, "message": fields["message"].encode("latin-1")})
    if "control" in fields:
        return ControlCase(**{**fields, "control": fields["control"].encode("latin-1")})
    if "key" in fields:
        return KeyCase(**fields)
    if "setting" in fields:
        return WeightsCase(**{**fields, "data": fields["data"].encode("latin-1")})
    parts = [
        Part(data=data.encode("latin-1"), repeat=repeat, pause_s=pause_s)
        for data, repeat, pause_s in fields["parts"]
    ]
    return AnswerCase(**{**fields, "parts": parts})

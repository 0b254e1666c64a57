"""Parse a claimed list element into a message that Celery can read, and refuse what could harm it.

Input: the text of a message. Output: a kombu message whose every part Celery can handle, or an
error. Anybody can write anything to a queue. So only the headers and properties that a job needs
are passed on, and each of them has its type checked.
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final

from kombu.message import Message
from kombu.utils.json import dumps, loads

from imagefleet.shared.errors import ImagefleetError, MessageRejected
from imagefleet.shared.jobs.celery_message import (
    BULK_TASK_NAME,
    RECORDED,
    TASK_NAME,
    request_sha1_of,
)
from imagefleet.shared.jobs.message_origin import MessageOrigin
from imagefleet.shared.jobs.model import check_job_id
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.text.printable import printable
from imagefleet.worker.queues.claim_types import Claimed

_TYPES_OF_HEADERS: Final[Mapping[str, tuple[type, ...]]] = {
    "id": (str,),
    "task": (str,),
    "root_id": (str, NoneType),
    "parent_id": (str, NoneType),
    "group": (str, NoneType),
    "group_index": (int, NoneType),
    "eta": (str, NoneType),
    "expires": (str, NoneType),
    "retries": (int, NoneType),
    "ignore_result": (bool, NoneType),
    "replaced_task_nesting": (int, NoneType),
    "stamped_headers": (list, NoneType),
    "stamps": (dict, NoneType),
}
"""The headers that Celery gets. It does not get the others: `timelimit` has no effect in a pool of
threads, `shadow`, `argsrepr` and `kwargsrepr` would only be logged."""
_TYPES_OF_PROPERTIES: Final[Mapping[str, tuple[type, ...]]] = {
    "correlation_id": (str, NoneType),
    "reply_to": (str, NoneType),
    "priority": (int, NoneType),
}
_PASSED_ARGUMENTS: Final[Mapping[str, tuple[str, ...]]] = {
    TASK_NAME: (),
    BULK_TASK_NAME: ("version", "run", "shard", "destination"),
}
"""The keyword arguments that Celery passes to a task. With others, such as `self`, the call of the
task fails. The task for a job needs none: its request is read before."""
_NO_COMPRESSION: Final = (None, "", "none", "identity")
_ENCODINGS: Final = ("utf-8", "utf8", "ascii", "us-ascii")
_MAX_SHOWN: Final = 60
_MAX_ID_CHARACTERS: Final = 255
_MAX_WORKFLOW_DEPTH: Final = 16
_WORKFLOW_LISTS: Final = ("callbacks", "errbacks", "chain")


class ClaimedMessage(Message):
    """A kombu message that knows the claim which brought it."""

    claimed: Claimed
    due: float | None
    """The message is due at this time (Unix seconds); None means at once. The header `eta` is
    removed: Celery would hold the message until then, and forget it when it reconnects."""
    origin: MessageOrigin
    """It describes the job that the message names, or the task of a shard."""
    task_arguments: dict[str, Any]
    """They are the keyword arguments of the task."""
    job_request: JobRequest | ImagefleetError
    """The request of the job, or why it cannot be read. `MessageReceiver` reads it, once."""


def parse_envelope(claimed: Claimed, task: str) -> ClaimedMessage:
    """Parse the envelope that kombu's Redis transport writes, for a message of this task.

    Raises:
        MessageRejected: a part of the message is missing, or Celery could not handle it.
        Exception: the message is not such an envelope. The type depends on what is wrong.
    """
    envelope = _require("the message", json.loads(claimed.message), dict)
    headers = _require("headers", envelope["headers"], dict)
    properties = _require("properties", envelope["properties"], dict)
    if headers["task"] != task:
        other = _shown(headers["task"])
        raise MessageRejected(
            f"this queue takes only the task {task}; send {other} to another queue"
        )
    check_job_id(headers["id"])
    _check_plain_json(envelope, headers)
    kept = _pick(headers, _TYPES_OF_HEADERS, "header")
    for name in kept.get("stamped_headers") or []:
        _require("header stamped_headers: an item", name, str)
    arguments, workflow = _parse_body(_body(envelope["body"], properties))
    passed = {name: arguments[name] for name in _PASSED_ARGUMENTS[task] if name in arguments}
    message = ClaimedMessage(
        body=dumps([[], passed, workflow]),
        delivery_tag=claimed.tag,
        content_type="application/json",
        content_encoding="utf-8",
        headers={**kept, "eta": None, **({RECORDED: True} if headers.get(RECORDED) else {})},
        properties={
            **_pick(properties, _TYPES_OF_PROPERTIES, "property"),
            "delivery_tag": claimed.tag,
        },
        delivery_info={
            **_addresses(properties.get("delivery_info")),
            "redelivered": claimed.deliveries > 1,
        },
        accept={"application/json"},
    )
    message.claimed = claimed
    message.origin = MessageOrigin(
        job_id=headers["id"],
        arguments=arguments,
        recorded=bool(headers.get(RECORDED)),
        request_sha1=request_sha1_of(headers),
    )
    message.due = _unix_time(kept["eta"]) if kept.get("eta") else None
    message.task_arguments = arguments
    return message


def _check_plain_json(envelope: Mapping[str, Any], headers: Mapping[str, Any]) -> None:
    """Raise MessageRejected if the body is not plain JSON. It is not decompressed: 1 kB may become
    1 GB."""
    if headers.get("compression") not in _NO_COMPRESSION:
        raise MessageRejected(
            f"the body is compressed ({_shown(headers['compression'])}); send it uncompressed"
        )
    if envelope["content-type"] != "application/json":
        shown = _shown(envelope["content-type"])
        raise MessageRejected(f"the content type is {shown}, not application/json")
    encoding = envelope["content-encoding"]
    if not isinstance(encoding, str) or encoding.lower() not in _ENCODINGS:
        raise MessageRejected(f"the content encoding is {_shown(encoding)}, not utf-8")


def _body(body: object, properties: Mapping[str, Any]) -> str | bytes:
    text: str = _require("body", body, str)
    return base64.b64decode(text) if properties.get("body_encoding") == "base64" else text


def _parse_body(body: str | bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keyword arguments and the workflow in a body of message protocol 2."""
    payload = loads(body)
    if not isinstance(payload, list) or len(payload) != 3:
        raise MessageRejected("the body is not [arguments, keyword arguments, workflow]")
    args, kwargs, workflow = payload
    if args != []:
        raise MessageRejected(
            "the message has positional arguments; a task of imagefleet takes keyword arguments"
        )
    if not isinstance(kwargs, dict):
        raise MessageRejected("the message has no keyword arguments")
    workflow = _require("the workflow", {} if workflow is None else workflow, dict)
    _check_workflow(workflow)
    return kwargs, workflow


def _check_workflow(workflow: Mapping[str, Any]) -> None:
    """Raise MessageRejected unless Celery can follow the chain, the chord and the callbacks.

    Celery lets the workflow overwrite anything that it knows about the request, so it may have no
    other parts.
    """
    unknown = set(workflow) - {*_WORKFLOW_LISTS, "chord"}
    if unknown:
        raise MessageRejected(f"the workflow has the unknown part {_shown(min(unknown))}")
    for name in _WORKFLOW_LISTS:
        for signature in _require(name, workflow.get(name) or [], list):
            _check_signature(name, signature)
    if workflow.get("chord") is not None:
        _check_signature("chord", workflow["chord"])


def _check_signature(where: str, signature: object, depth: int = 0) -> None:
    """Raise MessageRejected unless this is a signature of Celery with parts of the right types."""
    if depth > _MAX_WORKFLOW_DEPTH:
        raise MessageRejected(f"{where}: the workflow is more than {_MAX_WORKFLOW_DEPTH} deep")
    parts = _require(where, signature, dict)
    if not parts.get("task"):
        raise MessageRejected(f"{where}: a signature names no task")
    for name, kinds in (
        ("task", (str,)),
        ("args", (list,)),
        ("kwargs", (dict,)),
        ("options", (dict,)),
        ("subtask_type", (str, NoneType)),
        ("immutable", (bool, NoneType)),
    ):
        if name in parts:
            _require(f"{where}: {name}", parts[name], *kinds)
    for name in ("link", "link_error"):
        linked = parts.get("options", {}).get(name) or []
        for inner in linked if isinstance(linked, list) else [linked]:
            _check_signature(f"{where}: {name}", inner, depth + 1)
    for inner in parts.get("kwargs", {}).get("tasks") or []:
        if parts.get("subtask_type") in ("chain", "group"):
            _check_signature(where, inner, depth + 1)


def _pick(
    values: Mapping[str, Any], types: Mapping[str, tuple[type, ...]], kind: str
) -> dict[str, Any]:
    """Return the values that Celery gets. Raise MessageRejected if one has another type."""
    picked = {name: values[name] for name in types if name in values}
    for name, value in picked.items():
        _require(f"{kind} {name}", value, *types[name])
        if isinstance(value, str) and (
            len(value) > _MAX_ID_CHARACTERS or printable(value, _MAX_ID_CHARACTERS) != value
        ):
            raise MessageRejected(f"{kind} {name}={_shown(value)}: too long, or not printable")
    return picked


def _addresses(delivery_info: object) -> dict[str, str]:
    info = _require("property delivery_info", delivery_info, dict, NoneType) or {}
    return {
        name: _require(name, info[name], str)
        for name in ("exchange", "routing_key")
        if name in info
    }


def _require(what: str, value: Any, *kinds: type) -> Any:
    """Return `value` if it has one of these types; `bool` is no `int`."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
        raise MessageRejected(f"{what} is {_shown(value)}, not {names}")
    return value


def _shown(value: object) -> str:
    return printable(repr(value)[:_MAX_SHOWN], _MAX_SHOWN)


def _unix_time(eta: str) -> float:
    """Return the Unix time of an ISO 8601 time, which is UTC unless it names an offset."""
    time = datetime.fromisoformat(eta)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()

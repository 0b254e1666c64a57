"""Messages that a worker must survive, by what is wrong with them.

The tables hold functions, so that a message of many megabytes exists only while it is sent. A
message is the envelope of kombu's Redis transport, as plain Celery writes it, with parts replaced.
"""

import base64
import bz2
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME, job_message
from imagefleet.shared.jobs.message_arguments import MESSAGE_VERSION
from imagefleet.shared.jobs.request import JobRequest

Envelope: TypeAlias = dict[str, Any]
Table: TypeAlias = Mapping[str, Callable[[], Envelope]]

HOSTILE_ID: Final = "hostile"
"""Id of the job in a message, until `encode` replaces it."""

REQUEST: Final[Mapping[str, Any]] = {"prompt": "a", "seed": 1}


def encode(message: Envelope, job_id: str) -> str:
    """Return the element of a Redis list for a message, under the id `job_id`.

    The headers come first, so that the id is in the dead letter of a message that is cut.
    """
    others = {name: part for name, part in message.items() if name != "headers"}
    return json.dumps({"headers": {**message["headers"], "id": job_id}, **others})


def encode_body(payload: object) -> str:
    """Return the body of a message: JSON in Base64."""
    return base64.b64encode(json.dumps(payload).encode()).decode()


def envelope(**changes: object) -> Envelope:
    """Return a message of plain Celery with some parts replaced."""
    arguments = {"version": 1, "request": dict(REQUEST)}
    whole = with_body(job_message(HOSTILE_ID, JobRequest.parse(dict(REQUEST)), "q"), arguments)
    del whole["headers"]["recorded"]
    return {**whole, **changes}


def with_body(message: str, kwargs: object) -> Envelope:
    """Return a message whose task has these keyword arguments, in Base64 as Celery has them."""
    whole = json.loads(message)
    whole["properties"]["body_encoding"] = "base64"
    return {**whole, "body": encode_body([[], kwargs, {}])}


def with_headers(**changes: object) -> Envelope:
    """Return a message with some headers replaced."""
    whole = envelope()
    return {**whole, "headers": {**whole["headers"], **changes}}


def with_arguments(args: object, kwargs: object, **headers: object) -> Envelope:
    """Return a message whose task has these arguments."""
    return {**with_headers(**headers), "body": encode_body([args, kwargs, {}])}


def with_request(**changes: object) -> Envelope:
    """Return a message whose request has some fields replaced."""
    return with_arguments([], {"version": 1, "request": {**REQUEST, **changes}})


def with_workflow(**changes: object) -> Envelope:
    """Return a message with parts of a workflow: chain, chord, callbacks."""
    args, kwargs, workflow = json.loads(base64.b64decode(envelope()["body"]))
    return envelope(body=encode_body([args, kwargs, {**workflow, **changes}]))


@cache
def _bomb_body() -> str:
    return base64.b64encode(bz2.compress(b" " * 200_000_000)).decode()


def _bomb() -> Envelope:
    return {**with_headers(compression="bzip2"), "body": _bomb_body()}


def _signature(**changes: object) -> dict[str, Any]:
    return {"task": TASK_NAME, "args": [], "kwargs": {}, "options": {}, **changes}


NEWER: Final[Table] = {
    "newer version": lambda: with_arguments(
        [], {"version": MESSAGE_VERSION + 1, "request": REQUEST}
    ),
    "huge version": lambda: with_arguments([], {"version": 10**400, "request": REQUEST}),
}
"""Messages that wait for a newer worker, and become dead letters in the end."""

REFUSED: Final[Table] = {
    **NEWER,
    "unknown field": lambda: with_request(new=1),
    "unknown field of control characters": lambda: with_request(**{"\x1b[2J\r": 1}),
    "prompt of zero width": lambda: with_request(prompt="\u200b\u200d\ufeff"),
    "prompt with a C1 control": lambda: with_request(prompt="a\x9b2J"),
    "prompt with DEL": lambda: with_request(prompt="a\x7f"),
    "image outside the store": lambda: with_request(image="/tmp/a.png"),
    "image that is a folder": lambda: with_request(image="jobs"),
    "content type": lambda: envelope(**{"content-type": "\ud800"}),
    "content type of control characters": lambda: envelope(**{"content-type": "\x1b[31m\r"}),
    "content encoding": lambda: envelope(**{"content-encoding": "zlib"}),
    "positional arguments": lambda: with_arguments(["a red star"], {}),
    "positional and keyword": lambda: with_arguments([1], {"version": 1, "request": REQUEST}),
    "arguments are no mapping": lambda: with_arguments([], [1]),
    "chord_unlock": lambda: with_arguments([], {}, task="celery.chord_unlock"),
    "backend_cleanup": lambda: with_arguments([], {}, task="celery.backend_cleanup"),
    "unknown task": lambda: with_arguments([], {}, task="nobody.\x1bknows"),
    "surrogate task": lambda: with_arguments([], {}, task="\ud800"),
    "shard on a queue of jobs": lambda: with_arguments(
        [], {"version": 1, "run": "r", "shard": 1, "destination": "/x"}, task=BULK_TASK_NAME
    ),
    "chain of text": lambda: with_workflow(chain="x"),
    "chain of numbers": lambda: with_workflow(chain=[5]),
    "chain without task": lambda: with_workflow(chain=[{"args": []}]),
    "chain with odd options": lambda: with_workflow(chain=[_signature(options="x")]),
    "chord": lambda: with_workflow(chord=[1]),
    "callbacks": lambda: with_workflow(callbacks=7),
    "errbacks": lambda: with_workflow(errbacks=[[[]]]),
    "workflow that overwrites": lambda: with_workflow(properties={"delivery_tag": "1.000000"}),
    "group": lambda: with_headers(group={}),
    "parent": lambda: with_headers(parent_id=[]),
    "root": lambda: with_headers(root_id={"a": 1}),
    "retries": lambda: with_headers(retries="many"),
    "expires": lambda: with_headers(expires="\ud800"),
    "compression": _bomb,
    "too long": lambda: envelope(body="A" * 1_500_000),
}
"""Messages that end as dead letters or as failed jobs."""

HARMLESS: Final[Table] = {
    "time limit -1": lambda: with_headers(timelimit=-1),
    "time limits -1, none": lambda: with_headers(timelimit=[-1, None]),
    "time limits of text": lambda: with_headers(timelimit=["soon", "later"]),
    "huge time limits": lambda: with_headers(timelimit=[10**400, 10**400]),
    "unhashable shadow": lambda: with_headers(shadow=[{}]),
    "shadow with controls": lambda: with_headers(shadow="\x1b[2J"),
    "argsrepr": lambda: with_headers(argsrepr={}, kwargsrepr=["\ud800"], origin=5, lang=[]),
    "self": lambda: with_arguments([], {"version": 1, "request": REQUEST, "self": 1}),
    "no compression": lambda: with_headers(compression="none"),
}
"""Messages with parts that a job has no use for: it is done."""

BROKEN_ENDS: Final[Table] = {
    "serializer of the chain": lambda: with_workflow(
        chain=[_signature(options={"serializer": "none such"})]
    ),
    "queue of the chain": lambda: with_workflow(chain=[_signature(options={"queue": {}})]),
    "countdown of the chain": lambda: with_workflow(chain=[_signature(options={"countdown": "x"})]),
    "task id of the chain": lambda: with_workflow(chain=[_signature(options={"task_id": []})]),
    "group without tasks": lambda: with_workflow(
        callbacks=[_signature(task="celery.group", subtask_type="group")]
    ),
    "chord callback": lambda: with_workflow(callbacks=[_signature(subtask_type="chord")]),
    "unknown kind": lambda: with_workflow(chain=[_signature(subtask_type="\ud800")]),
    "chord without group": lambda: with_workflow(chord=_signature(chord_size="many")),
    "chord in a group": lambda: {
        **with_workflow(chord=_signature(chord_size="many")),
        "headers": with_headers(group="g")["headers"],
    },
    "reply": lambda: envelope(properties={**envelope()["properties"], "reply_to": "somewhere"}),
}
"""Messages whose job can be done, but whose workflow breaks when it ends."""

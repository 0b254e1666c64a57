"""Draw raw queue messages: rubbish, and real messages with parts replaced.

The text `ID` in a message stands for the id of its case.
"""

import base64
import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from imagefleet import JobRequest
from imagefleet.shared.bulk.shard_message import ShardMessage
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, TASK_NAME, job_message
from imagefleet.shared.jobs.message_arguments import MESSAGE_VERSION, pack
from tests.fuzz.cases import ID, LIST_RECORD
from tests.fuzz.envelope_values import (
    BUILT_IN_TASKS,
    ENVELOPE_VALUES,
    HARMLESS_HEADERS,
    HEADER_VALUES,
    PROPERTY_VALUES,
    VALID_SIGNATURES,
    workflows,
)
from tests.fuzz.job_requests import VALID_PARAMETERS, parameters
from tests.fuzz.record_fields import damaged_records
from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT

_JOB_QUEUES: Final = (
    "default.native",
    "default.native\x06\x163",
    "default.native\x06\x169",
    "fake.64x64\x06\x163",
    "default.64x64@gold\x06\x166",
)
_BULK_QUEUES: Final = ("bulk.default.native\x06\x163", "bulk.fake.64x64")
_COMPRESSORS: Final[Sequence[Callable[[bytes], bytes]]] = (
    zlib.compress,
    bz2.compress,
    gzip.compress,
    lzma.compress,
)
_BOMB: Final = bz2.compress(b" " * 60_000_000)
_MAX_NESTING: Final = 100_000

Envelope = dict[str, Any]


def _valid_envelope() -> Envelope:
    request = JobRequest(prompt="a red star", seed=1)
    envelope: Envelope = json.loads(job_message(ID, request, "default.native"))
    envelope["properties"]["body_encoding"] = "base64"
    _set_body(envelope, envelope["body"].encode())
    return envelope


def _encode(envelope: object) -> bytes:
    return json.dumps(envelope).encode()


def _set_body(envelope: Envelope, body: bytes) -> None:
    envelope["body"] = base64.b64encode(body).decode()


@st.composite
def _mutated_headers(draw: st.DrawFn) -> bytes:
    envelope = _valid_envelope()
    for table, place in (
        (HEADER_VALUES, envelope["headers"]),
        (PROPERTY_VALUES, envelope["properties"]),
        (ENVELOPE_VALUES, envelope),
    ):
        for name in draw(st.lists(st.sampled_from([*table]), max_size=2)):
            place[name] = draw(JSON_VALUES | table[name] | table[name])
    if draw(st.integers(0, 4)) == 0:
        place = draw(st.sampled_from([envelope, envelope["headers"], envelope["properties"]]))
        if isinstance(place, dict):
            place.pop(draw(st.sampled_from([*place] or ["none"])), None)
    if draw(st.integers(0, 3)) == 0 and isinstance(envelope.get("headers"), dict):
        envelope["headers"].pop("recorded", None)
        envelope["headers"][draw(ANY_TEXT | NASTY_TEXT)] = draw(JSON_VALUES)
    return _encode(envelope)


@st.composite
def _strange_but_readable(draw: st.DrawFn) -> bytes:
    """Draw a message that Celery can read, so that what follows the reading is tried too."""
    envelope = _valid_envelope()
    headers = envelope["headers"]
    headers["recorded"] = draw(st.booleans())
    for name in draw(st.lists(st.sampled_from([*HARMLESS_HEADERS]), max_size=3)):
        headers[name] = draw(HARMLESS_HEADERS[name])
    request = draw(VALID_PARAMETERS)
    workflow: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["callbacks", "errbacks", "chain"]), max_size=2)):
        workflow[name] = draw(st.lists(VALID_SIGNATURES, max_size=2))
    if draw(st.integers(0, 9)) == 0:
        workflow["chord"] = draw(VALID_SIGNATURES)
    _set_body(envelope, json.dumps([[], {"version": 1, "request": request}, workflow]).encode())
    return _encode(envelope)


@st.composite
def _mutated_arguments(draw: st.DrawFn) -> bytes:
    envelope = _valid_envelope()
    if draw(st.booleans()):
        envelope["headers"].pop("recorded")
    request = {**draw(parameters())}
    request.pop("id", None)
    arguments: Any = {"version": 1, "request": request}
    choice = draw(st.integers(0, 5))
    if choice == 0:
        arguments["version"] = draw(
            st.sampled_from([MESSAGE_VERSION + 1, "1", None, 1.0, True, 10**30])
        )
    elif choice == 1:
        arguments[draw(ANY_TEXT)] = draw(JSON_VALUES)
    elif choice == 2:
        arguments = draw(JSON_VALUES)
    positional = draw(st.just([]) | st.just([]) | st.just(["a red star"]) | JSON_VALUES)
    workflow = draw(st.just({}) | workflows() | JSON_VALUES)
    body = [positional, arguments, workflow]
    _set_body(envelope, json.dumps(draw(st.just(body) | st.just(body[:2]))).encode())
    return _encode(envelope)


@st.composite
def _foreign_bodies(draw: st.DrawFn) -> bytes:
    envelope = _valid_envelope()
    whole = json.dumps([[], pack(JobRequest(prompt="a red star", seed=1)), {}]).encode()
    compressed = draw(st.sampled_from(_COMPRESSORS))(whole)
    kinds = [compressed, compressed[:-3], _BOMB, whole[:-1], b"\xff\xfe" + whole, b""]
    _set_body(envelope, draw(st.sampled_from(kinds) | st.binary(max_size=200)))
    names = ["bzip2", "gzip", "zlib", "lzma", "zstd", "brotli", "application/x-bz2", "none"]
    envelope["headers"]["compression"] = draw(st.sampled_from(names) | ANY_TEXT)
    if draw(st.booleans()):
        envelope["headers"].pop("recorded")
    if draw(st.integers(0, 3)) == 0:
        envelope["body"] = draw(st.text(max_size=50) | JSON_VALUES)
    return _encode(envelope)


@st.composite
def _foreign_tasks(draw: st.DrawFn) -> bytes:
    envelope = _valid_envelope()
    names = st.sampled_from([*BUILT_IN_TASKS, BULK_TASK_NAME, TASK_NAME]) | ANY_TEXT | NASTY_TEXT
    envelope["headers"]["task"] = draw(names)
    if draw(st.booleans()):
        envelope["headers"].pop("recorded")
    arguments = draw(st.just({}) | st.dictionaries(ANY_TEXT, JSON_VALUES, max_size=3))
    body = [draw(st.just([]) | st.lists(JSON_VALUES, max_size=3)), arguments, draw(workflows())]
    _set_body(envelope, json.dumps(body).encode())
    return _encode(envelope)


@st.composite
def _shards(draw: st.DrawFn) -> bytes:
    envelope = _valid_envelope()
    envelope["headers"] |= {"task": BULK_TASK_NAME, "images": draw(st.integers(0, 10**6))}
    envelope["headers"].pop("recorded")
    destinations = ["file:///nowhere/x", "s3://bucket?endpoint_url=http://127.0.0.1:1", "", "\x00"]
    shard = ShardMessage(run="0" * 32, shard=0, destination="file:///nowhere").model_dump()
    shard["destination"] = draw(st.sampled_from(destinations))
    for name in draw(st.lists(st.sampled_from([*shard, "other"]), max_size=2)):
        shard[name] = draw(JSON_VALUES)
    _set_body(envelope, json.dumps([[], shard, {}]).encode())
    return _encode(envelope)


@st.composite
def _damaged_bytes(draw: st.DrawFn) -> bytes:
    text = bytearray(_encode(_valid_envelope()))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        text[start : start + draw(st.integers(0, 6))] = draw(st.binary(max_size=6))
    return bytes(text)


_DEEP: Final = st.builds(
    lambda opening, depth, closing: opening * depth + closing * depth,
    st.sampled_from([b"[", b'{"a":', b'{"headers":']),
    st.sampled_from([10, 1_000, 5_000, _MAX_NESTING]),
    st.sampled_from([b"", b"]", b"}"]),
)

_RUBBISH: Final = st.binary(max_size=300) | JSON_VALUES.map(_encode) | _DEEP

_FOR_JOBS: Final = st.one_of(
    _RUBBISH,
    _strange_but_readable(),
    _strange_but_readable(),
    _strange_but_readable(),
    _mutated_headers(),
    _mutated_headers(),
    _mutated_arguments(),
    _mutated_arguments(),
    _foreign_bodies(),
    _foreign_tasks(),
    _damaged_bytes(),
)


@st.composite
def raw_messages(draw: st.DrawFn) -> tuple[bytes, str]:
    """Draw a message and the Redis list to push it to."""
    choice = draw(st.integers(0, 9))
    if choice == 0:
        return draw(_shards()), draw(st.sampled_from(_BULK_QUEUES))
    if choice == 1:
        return draw(_FOR_JOBS | _shards()), draw(st.sampled_from([*_JOB_QUEUES, *_BULK_QUEUES]))
    return draw(_FOR_JOBS), draw(st.sampled_from(_JOB_QUEUES))


@st.composite
def records(draw: st.DrawFn) -> dict[str, str] | None:
    """Draw a job's record: none, right, of a newer release, damaged, or no hash at all."""
    request = JobRequest(prompt="a red star", seed=1).model_dump(mode="json")
    fields = {"state": "queued", "request": json.dumps(request), "submitted_at": "1.5"}
    choice = draw(st.integers(0, 9))
    if choice == 0:
        return None
    if choice == 9:
        return dict(LIST_RECORD)
    if choice == 4:
        newer = {**request, draw(ANY_TEXT): draw(JSON_VALUES)}
        fields |= {"request": json.dumps(newer), "newer": draw(st.text(max_size=9))}
    elif choice > 4:
        return draw(damaged_records())
    return fields

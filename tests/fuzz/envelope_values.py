"""Draw values for the parts of a Celery message in kombu's envelope, by the name of the part."""

from typing import Any, Final

from hypothesis import strategies as st

from imagefleet.shared.jobs.celery_message import TASK_NAME
from tests.fuzz.cases import ID
from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT, NUMBERS

BUILT_IN_TASKS: Final = (
    "celery.accumulate",
    "celery.backend_cleanup",
    "celery.chain",
    "celery.chord",
    "celery.chord_unlock",
    "celery.chunks",
    "celery.group",
    "celery.map",
    "celery.starmap",
)
"""All tasks that Celery registers in every app."""

_TIMES: Final = st.sampled_from(
    [
        "2020-01-01T00:00:00",
        "2020-01-01T00:00:00+25:00",
        "2999-01-01T00:00:00Z",
        "9999-12-31T23:59:59+00:00",
        "0001-01-01T00:00:00+14:00",
        "tomorrow",
        "2024-02-30",
        "12:00",
        0,
        -1,
        1e30,
        True,
    ]
)
_PAIRS: Final[st.SearchStrategy[Any]] = st.lists(st.none() | NUMBERS, max_size=3)

_CONTENT_TYPES: Final = (
    "application/json",
    "application/x-python-serialize",
    "application/x-yaml",
    "application/x-msgpack",
    "application/data",
    "application/text",
    "text/plain",
    "application/json; charset=\x1b[31m",
    "\ud800",
    "pickle",
    "json",
)
_ENCODINGS: Final = (
    "utf-8",
    "binary",
    "ascii-8bit",
    "us-ascii",
    "utf-16",
    "utf-7",
    "rot13",
    "zlib",
    "bz2",
    "hex",
    "idna",
    "punycode",
    "unicode_escape",
    "\ud800",
    "no such encoding",
)


def _signature(draw: st.DrawFn) -> dict[str, Any]:
    signature: dict[str, Any] = {
        "task": draw(st.sampled_from([TASK_NAME, *BUILT_IN_TASKS, "no.such.task", ""])),
        "args": draw(st.just([]) | JSON_VALUES),
        "kwargs": draw(st.just({}) | JSON_VALUES),
        "options": draw(st.sampled_from([{}, {"queue": "nowhere"}, {"task_id": ID}]) | JSON_VALUES),
        "subtask_type": draw(st.none() | st.sampled_from(["chain", "group", "chord", "x"])),
        "immutable": draw(st.booleans()),
    }
    for name in draw(st.lists(st.sampled_from([*signature, "chord_size"]), max_size=2)):
        signature[name] = draw(JSON_VALUES)
    return signature


@st.composite
def workflows(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the third element of a body: callbacks, errbacks, chain and chord, often broken."""
    workflow: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(["callbacks", "errbacks", "chain"]), max_size=2)):
        workflow[name] = draw(
            st.just([_signature(draw)]) | JSON_VALUES | st.just([draw(JSON_VALUES)])
        )
    if draw(st.integers(0, 2)) == 0:
        workflow["chord"] = draw(st.just(_signature(draw)) | JSON_VALUES)
    return workflow


HEADER_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "id": st.sampled_from(["", ".", "a" * 129, "a b", 7, None, "x:y"]) | NASTY_TEXT,
    "task": st.sampled_from([*BUILT_IN_TASKS]) | NASTY_TEXT,
    "lang": ANY_TEXT,
    "eta": _TIMES,
    "expires": _TIMES,
    "timelimit": _PAIRS,
    "retries": NUMBERS,
    "compression": st.sampled_from(["bzip2", "gzip", "zlib", "lzma", "x"]),
    "shadow": NASTY_TEXT | JSON_VALUES,
    "group": NASTY_TEXT,
    "group_index": NUMBERS,
    "root_id": NASTY_TEXT,
    "parent_id": NASTY_TEXT,
    "argsrepr": NASTY_TEXT,
    "kwargsrepr": NASTY_TEXT,
    "origin": NASTY_TEXT,
    "images": NUMBERS,
    "steps": NUMBERS,
    "recorded": st.sampled_from([True, False, None, "", "yes", [], 1]),
    "ignore_result": st.booleans(),
    "replaced_task_nesting": NUMBERS,
    "stamps": JSON_VALUES,
    "stamped_headers": JSON_VALUES,
    "lang_version": JSON_VALUES,
}
"""By the name of the header."""

PROPERTY_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "correlation_id": NASTY_TEXT,
    "reply_to": NASTY_TEXT,
    "delivery_info": st.just({}) | st.just({"exchange": [], "routing_key": {}}),
    "delivery_mode": NUMBERS,
    "delivery_tag": NASTY_TEXT,
    "priority": NUMBERS,
    "body_encoding": st.sampled_from(["base64", "utf-8", "", None, 1]),
    "expiration": NUMBERS,
}
"""By the name of the property."""

ENVELOPE_VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "content-type": st.sampled_from(_CONTENT_TYPES),
    "content-encoding": st.sampled_from(_ENCODINGS),
    "body": ANY_TEXT,
    "headers": st.just({}) | st.just({"id": ID}),
    "properties": st.just({}),
}
"""By the name of the part of the envelope."""

HARMLESS_HEADERS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "eta": st.sampled_from(["2020-01-01T00:00:00", "2020-01-01T00:00:00+02:00"]),
    "expires": st.sampled_from(["2020-01-01T00:00:00", "2999-01-01T00:00:00Z"]),
    "timelimit": st.sampled_from([[None, None], [60, 50]]),
    "retries": st.integers(0, 5),
    "shadow": st.just("a name"),
    "root_id": st.just("another"),
    "parent_id": st.just("another"),
    "group": st.just("a-group"),
    "group_index": st.integers(0, 9),
    "images": st.integers(0, 10**9),
    "steps": st.integers(0, 10**9),
    "ignore_result": st.booleans(),
    "replaced_task_nesting": st.integers(0, 3),
    "stamps": st.just({"stamp": ["a"]}),
    "stamped_headers": st.just(["stamp"]),
    "origin": st.just("1@host"),
    "custom": st.just("a header of some program"),
}
"""Values that Celery accepts, by the name of the header."""

VALID_SIGNATURES: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {
        "task": st.sampled_from([TASK_NAME, TASK_NAME, "no.such.task"]),
        "args": st.just([]),
        "kwargs": st.sampled_from(
            [{}, {"version": 1, "request": {"prompt": "a blue star", "seed": 2}}]
        ),
        "options": st.sampled_from([{}, {"queue": "nowhere"}, {"task_id": f"{ID}-next"}]),
        "subtask_type": st.none(),
        "immutable": st.booleans(),
    }
)
"""Signatures of workflows as Celery writes them."""

"""Draw fields of damaged records, offers, worker statuses and dead letters, and their keys."""

import json
from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from imagefleet import JobRequest
from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.model import JobError
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of
from tests.fuzz.cases import ID, KeyCase
from tests.fuzz.values import ANY_TEXT, JSON_VALUES, NASTY_TEXT
from tests.support.records import result_of_one_image

_NUMBERS: Final = (
    *("submitted_at", "started_at", "finished_at", "retry_at", "images_kept_until"),
    *("images_deleted_at", "step", "steps", "deliveries", "retries"),
)
_TEXTS: Final = ("state", "request", "result", "error", "attempt", "worker", "preview", "newer")
_ODD: Final = (
    *("nan", "inf", "-inf", "-1", "1e999", "1e18", "9" * 5_000, "-0", "0x10", " 5 ", "1_0", "٣"),
    *("", "null", "true", "[]", "{}", '""', "[" * 5_000, '{"a":' * 5_000, "NaN", '{"at": NaN}'),
    *("a:1:b", "a" * 9_000, "running", "succeeded", "failed", "cancelled", "paused", "QUEUED"),
)
_VALUES: Final[st.SearchStrategy[str]] = st.one_of(
    st.sampled_from(_ODD), NASTY_TEXT, ANY_TEXT, JSON_VALUES.map(json.dumps)
)
"""Every field may get these values."""

_REQUEST: Final = JobRequest(prompt="a red star", seed=1).model_dump(mode="json")
_RESULT: Final = result_of_one_image().model_dump(mode="json")
_ERROR: Final = JobError(code="worker_error", message="why").model_dump(mode="json")
_STATUS: Final = json.loads(
    WorkerStatus(worker="w", state=WorkerState.READY, model="fake", shapes=("64x64",)).dump()
)
_OFFER: Final = offer_of(FakeEngine().info).model_dump(mode="json")
_LETTER: Final = DeadLetter(
    id="x", job_id="x", code="c", reason="why", at=1.0, deliveries=1, list_key="q", message="{}"
).model_dump(mode="json")
_STATES: Final[Mapping[str, Mapping[str, str]]] = {
    "queued": {},
    "running": {
        "attempt": "host:1:a/1",
        "worker": "host:1:a",
        "started_at": "2",
        "deliveries": "1",
    },
    "succeeded": {"result": json.dumps(_RESULT), "finished_at": "3"},
    "failed": {"error": json.dumps(_ERROR), "finished_at": "3"},
}
_SCORES: Final = ("0", "1", "-1", "inf", "-inf", "1e300", "99999999999", "5e-324")


@st.composite
def _documents(draw: st.DrawFn, whole: Mapping[str, Any]) -> str:
    """Draw JSON like `whole`, with some of its values, or of the values within, replaced."""
    changed = json.loads(json.dumps(whole))
    for _ in range(draw(st.integers(0, 2))):
        place = changed
        name = draw(st.sampled_from([*whole, "other"]))
        inner = place.get(name)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            place, name = inner[0], draw(st.sampled_from([*inner[0]]))
        place[name] = draw(JSON_VALUES)
    return json.dumps(changed)


def _of(whole: Mapping[str, Any]) -> st.SearchStrategy[str]:
    return st.one_of(_documents(whole), _documents(whole), _VALUES)


@st.composite
def damaged_records(draw: st.DrawFn, states: tuple[str, ...] = tuple(_STATES)) -> dict[str, str]:
    """Draw a job's record in one of these states, of which some fields are damaged or missing."""
    state = draw(st.sampled_from(states))
    request = json.dumps(_REQUEST)
    fields = {"state": state, "request": request, "submitted_at": "1.5", **_STATES[state]}
    documents = {"request": _REQUEST, "result": _RESULT, "error": _ERROR}
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from([*_NUMBERS, *_TEXTS, *fields]))
        if draw(st.integers(0, 9)) == 0:
            fields.pop(name, None)
        elif name in documents:
            fields[name] = draw(_of(documents[name]))
        else:
            fields[name] = draw(_VALUES)
    return fields


_NAMES: Final = st.one_of(ANY_TEXT, NASTY_TEXT, st.sampled_from(["a", "host:1:a", "x" * 3_000]))


@st.composite
def damaged_keys(draw: st.DrawFn) -> KeyCase:
    """Draw a key that commands and the exporter read, without an id."""
    hashes: dict[str, st.SearchStrategy[dict[str, str]]] = {
        f"job:{ID}": damaged_records(),
        "catalogue": st.dictionaries(
            st.sampled_from(["default", "fake", "other"]) | _NAMES, _of(_OFFER), min_size=1
        ),
        "workers": st.dictionaries(_NAMES, _of(_STATUS), min_size=1, max_size=3),
        "dead:letters": st.dictionaries(_NAMES, _of(_LETTER), min_size=1, max_size=3),
        "ends": st.dictionaries(_NAMES | st.just("succeeded"), _VALUES, min_size=1, max_size=3),
        "limits": st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=3),
        "weights": st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=3),
    }
    keys = [f"job:{ID}"] * 5 + [*hashes] + ["catalogue", "workers"]
    if draw(st.integers(0, 9)) == 0:
        scores = st.dictionaries(_NAMES, st.sampled_from(_SCORES), min_size=1, max_size=3)
        return KeyCase(id="", key="leases", kind="zset", fields=draw(scores))
    key = draw(st.sampled_from(keys))
    if draw(st.integers(0, 9)) == 0:
        kind = draw(st.sampled_from(["string", "list", "set", "zset"]))
        return KeyCase(id="", key=key, kind=kind, fields={draw(_NAMES): "1"})
    return KeyCase(id="", key=key, kind="hash", fields=draw(hashes[key]))

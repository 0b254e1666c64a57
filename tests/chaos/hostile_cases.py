"""The hostile input of a chaos run, drawn from a seed, and how each case may end.

The cases are those of the integration tests and of the fuzzer. This module uses neither Redis nor
workers nor servers.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import cycle
from typing import Any, Final

from imagefleet.shared.jobs.queues import list_key
from imagefleet.shared.jobs.request import JobRequest
from tests.chaos.planned_jobs import PlannedJob
from tests.fuzz.answers import PLAIN_HEAD, many_scans
from tests.fuzz.cases import AnswerCase, Case, MessageCase, Part, RequestCase
from tests.fuzz.generate import RoundSize, draw_round
from tests.support.hostile_messages import (
    BROKEN_ENDS,
    HARMLESS,
    REFUSED,
    REQUEST,
    Table,
    encode,
    with_arguments,
)

HOSTILE_ID: Final = re.compile(r"hostile-\d+")
"""The id of a case. Every message contains it, and so does the dead letter of a message."""

_QUEUE: Final = "default.native"
_PRIORITIES: Final = (0, 3, 3, 6, 9)
_HANG_S: Final = 12.0
"""Longer than a worker waits for a receiver."""
_DRAWN_ANSWERS: Final = 16
_HANGING_RECEIVERS: Final = 4
_IDS_IN_USE: Final = 3
_REFUSED_PARAMETERS: Final[Sequence[Mapping[str, Any]]] = (
    {"prompt": "\u200b\u200d\ufeff"},
    {"prompt": "a\x9b2J"},
    {"prompt": "a", "\x1b[2J\r": 1},
)


class RightEnd(StrEnum):
    """How a case must end."""

    REFUSED_AT_ONCE = "refused when it was submitted"
    REFUSED = "a dead letter, or a job that failed"
    DONE = "a job that succeeded"
    ANY = "a dead letter, or a job that ended"


@dataclass(frozen=True, kw_only=True)
class HostileCase:
    """One hostile message, request or answer of a server."""

    name: str
    right_end: RightEnd
    case: Case
    respelled: bool = False
    """Whether the address of the answer is one of many spellings of one host."""


_Draw = Callable[[str, random.Random], HostileCase]
"""Makes the case with an id."""


def draw_hostile(seed: int, number: int, planned: Sequence[PlannedJob]) -> list[HostileCase]:
    """Return `number` hostile cases in the order in which they are sent. Every kind comes before
    the list of kinds starts again."""
    rng = random.Random(seed)
    draws = [*_message_draws(), *_request_draws(planned), *_answer_draws(seed)]
    rng.shuffle(draws)
    numbered = zip(range(number), cycle(draws), strict=False)
    return [draw(f"hostile-{at}", rng) for at, draw in numbered]


def _message_draws() -> Iterator[_Draw]:
    for table, right_end in (
        (REFUSED, RightEnd.REFUSED),
        (HARMLESS, RightEnd.DONE),
        (BROKEN_ENDS, RightEnd.ANY),
    ):
        yield from (_message_draw(table, name, right_end) for name in table)
    yield _newer_record


def _message_draw(table: Table, name: str, right_end: RightEnd) -> _Draw:
    def draw(case_id: str, rng: random.Random) -> HostileCase:
        message = encode(table[name](), case_id).encode()
        case = MessageCase(id=case_id, message=message, queue=_draw_queue(rng))
        return HostileCase(name=name, right_end=right_end, case=case)

    return draw


def _draw_queue(rng: random.Random) -> str:
    return list_key(_QUEUE, rng.choice(_PRIORITIES))


def _newer_record(case_id: str, rng: random.Random) -> HostileCase:
    """Return a job that a newer producer recorded, with a field that this version does not know.

    Without the field the image might be another one. So it waits for a newer worker, in vain.
    """
    request = {**REQUEST, "a_newer_field": [1]}
    stored = {**JobRequest.parse(dict(REQUEST)).model_dump(mode="json"), **request}
    message = with_arguments([], {"version": 1, "request": request}, recorded=True)
    case = MessageCase(
        id=case_id,
        message=encode(message, case_id).encode(),
        queue=_draw_queue(rng),
        record={"state": "queued", "request": json.dumps(stored), "submitted_at": "1.5"},
    )
    return HostileCase(name="record of a newer version", right_end=RightEnd.REFUSED, case=case)


def _request_draws(planned: Sequence[PlannedJob]) -> Iterator[_Draw]:
    early = planned[: len(planned) // 10 + 1]

    def id_in_use(case_id: str, rng: random.Random) -> HostileCase:
        return _refused_at_once("id in use", rng.choice(early).id, {"prompt": "another job"})

    yield from [id_in_use] * _IDS_IN_USE
    yield from (partial(_odd_parameters, each) for each in _REFUSED_PARAMETERS)


def _odd_parameters(parameters: Mapping[str, Any], case_id: str, rng: random.Random) -> HostileCase:
    return _refused_at_once("odd parameters", case_id, parameters)


def _refused_at_once(name: str, job_id: str, parameters: Mapping[str, Any]) -> HostileCase:
    case = RequestCase(id=job_id, parameters=parameters)
    return HostileCase(name=name, right_end=RightEnd.REFUSED_AT_ONCE, case=case)


def _answer_draws(seed: int) -> Iterator[_Draw]:
    slow = AnswerCase(id="", role="image", parts=[], hang_s=_HANG_S)
    scans = [Part(data=PLAIN_HEAD + many_scans())]
    controls = [Part(data=b"HTTP/1.1 500 \x1b[31mred\r\x9b2J\r\ncontent-length: 0\r\n\r\n")]
    yield _answer_draw("JPEG of 1,000 scans", AnswerCase(id="", role="image", parts=scans))
    yield _answer_draw("image server: slow", slow)
    yield _answer_draw(
        "receiver: control characters", AnswerCase(id="", role="callback", parts=controls)
    )
    hanging = AnswerCase(id="", role="callback", parts=[], hang_s=_HANG_S)
    for _ in range(_HANGING_RECEIVERS):
        yield _answer_draw("receiver: hangs, in many spellings", hanging, respelled=True)
    for case in draw_round(seed, RoundSize(requests=0, messages=0, answers=_DRAWN_ANSWERS)):
        assert isinstance(case, AnswerCase)
        yield _answer_draw(f"fuzzer's answer to {case.role}", case)


def _answer_draw(name: str, answer: AnswerCase, *, respelled: bool = False) -> _Draw:
    right_end = RightEnd.DONE if answer.role == "callback" else RightEnd.ANY

    def draw(case_id: str, rng: random.Random) -> HostileCase:
        case = replace(answer, id=case_id)
        return HostileCase(name=name, right_end=right_end, case=case, respelled=respelled)

    return draw

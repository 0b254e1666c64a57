"""Decide what became of each case of a round that has settled."""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, cast

from imagefleet import JobStatus
from imagefleet.shared.jobs.celery_message import BULK_TASK_NAME, RECORDED
from imagefleet.shared.jobs.model import JOB_ID, TERMINAL
from imagefleet.shared.jobs.redis_keys import dead_letter_contents_key
from tests.fuzz.cases import AnswerCase, MessageCase
from tests.fuzz.fleet import NAMESPACE, FuzzedFleet
from tests.fuzz.ledger import Ledger, Problem, holds_controls
from tests.fuzz.settle import headers_of, job_id_of

MAX_TEXT_CHARACTERS: Final = 4_200
"""The worker cuts a line of its log at 4,000 characters, before which the time stands."""


class MessageOutcomes:
    """The outcomes of the raw messages of one round."""

    def __init__(self, fleet: FuzzedFleet, ledger: Ledger, delayed: Collection[bytes]) -> None:
        self._ledger, self._delayed = ledger, delayed
        self._redis = fleet.redis
        texts: Any = fleet.redis.hvals(dead_letter_contents_key(NAMESPACE))
        letters = [json.loads(text) for text in texts]
        self._codes: dict[str, str] = {each["message"]: each["code"] for each in letters}

    def check(self, cases: Sequence[MessageCase]) -> list[Problem]:
        """Count the outcome of each case. A message without any is a problem."""
        unmatched = []
        matched = 0
        for case in cases:
            text = case.message.decode(errors="replace")
            if text in self._codes:
                matched += 1
                self._ledger.count("message", f"dead letter: {self._codes[text]}")
            elif outcome := self._outcome(case):
                self._ledger.count("message", outcome)
            else:
                unmatched.append(case)
        # A letter may hold a part of its message, or another spelling of it.
        others = len(self._codes) - matched
        if len(unmatched) > others:
            shown = b", ".join(case.message[:300] for case in unmatched[:3])
            sentence = (
                f"{len(unmatched) - others} messages left neither record nor letter: {shown!r}"
            )
            return [Problem(sentence=sentence, suspects=[case.id for case in unmatched])]
        for _ in unmatched:
            self._ledger.count("message", "dead letter, not with the same text")
        return []

    def _outcome(self, case: MessageCase) -> str:
        """Return the outcome of a message without a letter, or ''."""
        if case.message in self._delayed:
            return "delayed until its eta"
        job_id = job_id_of(case.message)
        state = None
        if job_id is not None and JOB_ID.fullmatch(job_id):
            key = f"{NAMESPACE}:job:{job_id}"
            if self._redis.type(key) not in (b"hash", b"none"):
                return ""
            state = cast(bytes | None, self._redis.hget(key, "state"))
        if state is not None and state.decode(errors="replace") in set(TERMINAL):
            return f"record: {state.decode()}"
        headers = headers_of(case.message)
        if state is None and headers.get(RECORDED):
            return "dropped: its record is gone"
        if headers.get("task") == BULK_TASK_NAME:
            return "dropped: its run is gone"
        return ""


def count_answers(fleet: FuzzedFleet, ledger: Ledger, cases: Sequence[AnswerCase]) -> None:
    """Count what became of the jobs whose servers were hostile."""
    for case in cases:
        fields = cast(dict[bytes, bytes], fleet.redis.hgetall(f"{NAMESPACE}:job:{case.id}"))
        outcome = fields.get(b"state", b"no record").decode()
        if case.role == "callback":
            attempts = fleet.client.outbox.attempts_of(case.id)
            outcome = attempts[0].verdict.value if attempts else "not tried"
        elif b"error" in fields:
            outcome += f": {json.loads(fields[b'error'])['code']}"
        ledger.count(f"answer to {case.role}", outcome)


def check_what_producers_read(
    fleet: FuzzedFleet, ledger: Ledger, ids: Sequence[str], log: str
) -> list[Problem]:
    """Read every record, dead letter and callback as a producer does.

    It is a problem if something cannot be read at all, and if a text is long or holds control
    characters.
    """
    ledger.totals["lines in the worker's log"] += len(log.splitlines())
    ledger.totals["tracebacks in the worker's log"] += log.count("Traceback (most recent call")
    texts = [("the log", "", line) for line in log.splitlines()]
    try:
        texts += _stored_texts(fleet, ids)
    except Exception as error:  # whatever it is, a producer would end with it
        return [Problem(sentence=f"a producer cannot read: {type(error).__name__}: {error}"[:500])]
    return [
        Problem(sentence=f"{fault} in {where} {job_id}: {text[:300]!r}", suspects=[job_id])
        for where, job_id, text in texts
        if (fault := _fault(text))
    ]


def _stored_texts(fleet: FuzzedFleet, ids: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return where each text is, the job that it is about, and the text."""
    texts = []
    for status in fleet.client.statuses(ids):
        if isinstance(status, JobStatus) and status.error is not None:
            texts.append(("the record", status.id, status.error.message))
    for letter in fleet.client.dead_letters.read():
        texts.append(("the dead letter", letter.job_id or "", letter.reason))
    for entry in fleet.client.outbox.entries():
        texts.append(("the callback", entry.job_id, entry.last.reason if entry.last else ""))
    return texts


def _fault(text: str) -> str:
    if holds_controls(text):
        return "control characters"
    return f"{len(text)} characters" if len(text) > MAX_TEXT_CHARACTERS else ""

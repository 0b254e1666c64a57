"""Run rounds of cases against a fleet, and find the case that broke something."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from imagefleet import InvalidRequest
from tests.fuzz.answers import STORED, parameters_for
from tests.fuzz.cases import (
    LIST_RECORD,
    AnswerCase,
    Case,
    ControlCase,
    KeyCase,
    MessageCase,
    RequestCase,
)
from tests.fuzz.controls import send_controls
from tests.fuzz.damaged_keys import DamagedKeys
from tests.fuzz.fleet import NAMESPACE, FuzzedFleet, probe_sentence
from tests.fuzz.hostile_server import HostileServers
from tests.fuzz.ledger import Ledger, Problem, holds_controls, suspects_first
from tests.fuzz.outcomes import MessageOutcomes, check_what_producers_read, count_answers
from tests.fuzz.settle import Settling

MAX_GROWTH_MB: Final = 150.0
"""It is 67 after 16 rounds: late imports, and what allocators keep of small objects."""
STALL_S: Final = 100.0
"""Longer than an image server that hangs can hold a job, with its retry."""
_MAX_TRIES: Final = 16
"""Fleets that are started to find the case that broke something."""


class Round:
    """A round sends its cases to a fleet at once, and then looks at what became of them."""

    def __init__(
        self, fleet: FuzzedFleet, servers: HostileServers, ledger: Ledger, stall_s: float = STALL_S
    ) -> None:
        self._fleet, self._servers, self._ledger = fleet, servers, ledger
        self._stall_s = stall_s
        self._jobs: list[str] = []
        self._answers: set[str] = set()
        """Those of the jobs that are answer cases."""

    def run(self, cases: Sequence[Case]) -> list[Problem]:
        """Run the cases and return what went wrong."""
        problems = self._send(cases)
        settling = Settling(self._fleet, self._ledger, self._stall_s)
        stuck = settling.wait(self._jobs)
        if stuck:
            return [*problems, *stuck]
        messages = [case for case in cases if isinstance(case, MessageCase)]
        outcomes = MessageOutcomes(self._fleet, self._ledger, settling.delayed_until_eta)
        problems += outcomes.check(messages)
        count_answers(
            self._fleet, self._ledger, [case for case in cases if isinstance(case, AnswerCase)]
        )
        problems += check_what_producers_read(
            self._fleet, self._ledger, [case.id for case in cases], self._fleet.new_log()
        )
        keys = [case for case in cases if isinstance(case, KeyCase)]
        problems += DamagedKeys(self._fleet, self._ledger).check(keys)
        problems += settling.wait([])  # `resend` may have sent what a damaged record asks for
        problems += self._probe() + self._check_memory()
        self._count_states()
        self._fleet.clear()
        return problems

    def _send(self, cases: Sequence[Case]) -> list[Problem]:
        self._servers.set_answers(case for case in cases if isinstance(case, AnswerCase))
        problems = []
        for case in cases:
            if isinstance(case, MessageCase):
                self._push(case)
            elif isinstance(case, AnswerCase):
                self._submit_answer(case)
            elif isinstance(case, RequestCase) and (problem := self._submit(case)):
                problems.append(problem)
        controls = [case for case in cases if isinstance(case, ControlCase)]
        return problems + send_controls(self._fleet, self._ledger, controls)

    def _push(self, case: MessageCase) -> None:
        key = f"{NAMESPACE}:job:{case.id}"
        if case.record == LIST_RECORD:
            self._fleet.redis.lpush(key, "x")
        elif case.record:
            fields: dict[Any, Any] = {
                name.encode(errors="replace"): value.encode(errors="replace")
                for name, value in case.record.items()
            }
            self._fleet.redis.hset(key, mapping=fields)
        self._fleet.push(case.queue, case.message)

    def _submit(self, case: RequestCase) -> Problem | None:
        parameters = {"id": case.id, **case.parameters}
        try:
            [job] = self._fleet.client.submit_many([parameters])
        except InvalidRequest as error:
            self._ledger.count("request", "refused")
            named = isinstance(error.field, str) and error.limit and error.limit in str(error)
            if named and not holds_controls(str(error)):
                return None
            return Problem(sentence=f"an unclear refusal: {str(error)!r}", suspects=[case.id])
        except Exception as error:  # whatever it is, a producer would end with it
            sentence = f"submitting raised {type(error).__name__}: {error!s:.300}"
            return Problem(sentence=ascii(sentence), suspects=[case.id])
        self._jobs.append(job.id)
        return None

    def _submit_answer(self, case: AnswerCase) -> None:
        url = self._servers.url(case)
        if case.role == STORED:
            url = f"fuzz/{case.id}.safetensors"
            self._fleet.store_file(url, b"".join(part.data for part in case.parts))
        parameters = parameters_for(case, url)
        self._jobs.append(self._fleet.client.submit(id=case.id, **parameters).id)
        self._answers.add(case.id)

    def _count_states(self) -> None:
        states = self._fleet.redis.pipeline(transaction=False)
        for job_id in (job for job in self._jobs if job not in self._answers):
            states.hget(f"{NAMESPACE}:job:{job_id}", "state")
        for state in states.execute():
            self._ledger.count("request", (state or b"no record").decode())

    def _probe(self) -> list[Problem]:
        seconds, sentence = probe_sentence(self._fleet)
        self._ledger.raise_to("seconds of an ordinary job", round(seconds, 2))
        return [Problem(sentence=sentence)] if sentence else []

    def _check_memory(self) -> list[Problem]:
        growth = self._fleet.memory_mb("VmRSS") - self._fleet.rss_at_start
        self._ledger.raise_to("growth of the worker's memory, MB", round(growth))
        self._ledger.raise_to("peak of the worker's memory, MB", self._fleet.memory_mb("VmHWM"))
        if growth <= MAX_GROWTH_MB:
            return []
        return [Problem(sentence=f"the worker's memory grew by {growth:.0f} MB")]


def reduce_cases(
    cases: Sequence[Case], problems: Sequence[Problem], servers: HostileServers, stall_s: float
) -> list[Case]:
    """Return the fewest cases that, as far as can be found quickly, still break something."""
    smallest = suspects_first(cases, problems)
    tries = 0
    if len(smallest) < len(cases) and not _breaks(smallest, servers, stall_s):
        smallest = list(cases)
    while len(smallest) > 1 and tries < _MAX_TRIES:
        middle = len(smallest) // 2
        halves = (smallest[:middle], smallest[middle:])
        tries += len(halves)
        broken = next((half for half in halves if _breaks(half, servers, stall_s)), None)
        if broken is None:
            break
        smallest = broken
    return smallest


def _breaks(cases: Sequence[Case], servers: HostileServers, stall_s: float) -> bool:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, FuzzedFleet(Path(folder)) as fleet:
        problems = Round(fleet, servers, Ledger(), stall_s).run(cases)
        print(f"  {len(cases)} cases: {'broken' if problems else 'fine'}", flush=True)
        return bool(problems)

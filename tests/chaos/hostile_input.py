"""The hostile input of a chaos run while it runs: the servers, and the process that sends."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from tests.chaos.hostile_cases import HostileCase
from tests.chaos.processes import ProducerProcess
from tests.fuzz.answers import parameters_for
from tests.fuzz.cases import AnswerCase, Case, Part, RequestCase, dump_cases
from tests.fuzz.hostile_server import HostileServers

_SPELLINGS: Final = 40
_ACCEPTED: Final = Part(data=b"HTTP/1.1 204 No Content\r\n\r\n")


class HostileInput:
    """`with HostileInput(cases, environment, folder, seconds) as hostile`: the cases are sent, one
    after the other, within so many seconds."""

    def __init__(
        self,
        cases: Sequence[HostileCase],
        environment: Mapping[str, str],
        folder: Path,
        seconds: float,
    ) -> None:
        self.cases = cases
        self._stack = ExitStack()
        self._servers = HostileServers()
        self._answers = [each.case for each in cases if isinstance(each.case, AnswerCase)]
        self._servers.set_answers(self._answers)
        file = folder / "hostile.json"
        dump_cases([self._sendable(number, each) for number, each in enumerate(cases)], file)
        self._process = ProducerProcess(
            "tests.chaos.hostile_producer",
            [str(file), str(seconds)],
            environment,
            folder / "sent by the hostile producer",
        )

    def __enter__(self) -> Self:
        self._stack.enter_context(self._servers)
        self._stack.enter_context(self._process)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def done(self) -> bool:
        """Whether all cases were sent. Raise AssertionError if the process failed."""
        return self._process.done()

    def refusals(self) -> list[str | None]:
        """Return for each case the error with which the client refused it; None if it was sent."""
        return [json.loads(line) for line in self._process.journal.read_text().splitlines()]

    def relent(self) -> None:
        """Let receivers accept from now on, and image servers answer 404."""
        receivers = [case for case in self._answers if case.role == "callback"]
        self._servers.set_answers(
            replace(each, parts=[_ACCEPTED], hang_s=0, reset=False) for each in receivers
        )

    def _sendable(self, number: int, hostile: HostileCase) -> Case:
        """Return what is sent for a case: for the answer of a server, a job that asks for it."""
        case = hostile.case
        if not isinstance(case, AnswerCase):
            return case
        if hostile.respelled:
            url = self._servers.respelled_url(case, number % _SPELLINGS)
        else:
            url = self._servers.url(case)
        return RequestCase(id=case.id, parameters=parameters_for(case, url))

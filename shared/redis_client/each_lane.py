"""Ask several lanes at the same time, so that one that does not answer holds up no other.

Whoever wants to say which lanes an answer lacks calls `noting_left_out` around it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from operator import itemgetter
from typing import Final, TypeVar

from imagefleet.shared.errors import BrokerUnavailable

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)

_left_out: Final[ContextVar[set[int] | None]] = ContextVar("left_out", default=None)


@contextmanager
def noting_left_out() -> Iterator[set[int]]:
    """Yield a set that gets the numbers of lanes that are left out inside the block, also in
    threads that run in a copy of its context."""
    numbers: set[int] = set()
    token = _left_out.set(numbers)
    try:
        yield numbers
    finally:
        _left_out.reset(token)


def ask_at_once(
    asks: Mapping[int, Callable[[], Answer]], lanes: int, within_s: float, what: str
) -> dict[int, Answer]:
    """Call the function of each lane in a thread of its own. Return the answers by lane, in the
    order of the lanes; see `answers_of`."""
    return dict(sorted(answers_of(asks, lanes, within_s, what), key=itemgetter(0)))


def first_wanted(
    asks: Mapping[int, Callable[[], Answer]],
    is_wanted: Callable[[Answer], bool],
    within_s: float,
    what: str,
    sought: str,
) -> Answer:
    """Ask all lanes of a fleet for what is in one of them. Return the first answer that is wanted,
    or else that of the first lane.

    Args:
        sought: what the error says that the lanes do not have.

    Raises:
        BrokerUnavailable: no lane that answers has it, and others do not answer.
    """
    answers: dict[int, Answer] = {}
    for number, answer in answers_of(asks, len(asks), within_s, what):
        if is_wanted(answer):
            return answer
        answers[number] = answer
    if silent := sorted(asks.keys() - answers.keys()):
        lanes = ", ".join(map(str, silent))
        raise BrokerUnavailable(
            f"no lane that answers has the {sought}; lanes that do not: {lanes}"
        )
    return answers[0]


def answers_of(
    asks: Mapping[int, Callable[[], Answer]], lanes: int, within_s: float, what: str
) -> Iterator[tuple[int, Answer]]:
    """Call the function of each lane in a thread of its own. Yield the lanes and their answers as
    they come.

    A lane that fails, or has no answer after `within_s`, is left out, and a warning names it. A
    call that has no answer yet goes on in its thread. The only lane of a fleet is asked in this
    thread, for as long as it takes, and its error is raised.

    Args:
        lanes: number of lanes of the fleet.
        what: what is asked for, for the warning.
    """
    if lanes == 1:
        yield from ((number, ask()) for number, ask in asks.items())
        return
    asked = {start_asking(ask, f"lane-{number}"): number for number, ask in asks.items()}
    silent = set(asked.values())
    try:
        for future in as_completed(asked, within_s):
            number = asked[future]
            silent.discard(number)
            if (error := future.exception()) is None:
                yield number, future.result()
            elif isinstance(error, Exception):
                _leave_out(number, _failure(error), what)
            else:
                raise error
    except TimeoutError:
        for number in sorted(silent):
            _leave_out(number, f"has not answered within {within_s:g} s", what)


def start_asking(ask: Callable[[], Answer], name: str) -> "Future[Answer]":
    """Call a function in a thread of its own, which does not keep the process alive."""
    answer: Future[Answer] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


def _leave_out(number: int, why: str, what: str) -> None:
    log.warning("lane %d %s: %s", number, why, what)
    if (numbers := _left_out.get()) is not None:
        numbers.add(number)


def _failure(error: Exception) -> str:
    from imagefleet.shared.redis_client.write_errors import describe_failure

    return describe_failure(error)

"""Ask several lanes at the same time, so that one that does not answer holds up no other."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


def ask_at_once(
    asks: Mapping[int, Callable[[], Answer]], lanes: int, within_s: float, what: str
) -> dict[int, Answer]:
    """Call the function of each lane in a thread of its own. Return the answers by lane.

    A lane that fails, or has no answer after `within_s`, is left out, and a warning names it. A
    call that has no answer yet goes on in its thread. The only lane of a fleet is asked in this
    thread, for as long as it takes, and its error is raised.

    Args:
        lanes: number of lanes of the fleet.
        what: what is asked for, for the warning.
    """
    if lanes == 1:
        return {number: ask() for number, ask in asks.items()}
    deadline = time.monotonic() + within_s
    asked = {number: start_asking(ask, f"lane-{number}") for number, ask in asks.items()}
    answers: dict[int, Answer] = {}
    for number, future in asked.items():
        try:
            answers[number] = future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            log.warning("lane %d has not answered within %g s: %s", number, within_s, what)
        except Exception as error:
            log.warning("lane %d %s: %s", number, _failure(error), what)
    return answers


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


def _failure(error: Exception) -> str:
    from imagefleet.shared.redis_client.write_errors import describe_failure

    return describe_failure(error)

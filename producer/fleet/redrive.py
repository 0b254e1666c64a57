"""Redrive a dead letter, and say what came of it."""

from typing import NamedTuple

from imagefleet.producer.connection.lane_dead_letters import LaneDeadLetters
from imagefleet.shared.jobs.dead_letters import DeadLetter
from imagefleet.shared.jobs.model import State


class Redriven(NamedTuple):
    """A letter was redriven, or not."""

    done: bool
    """Whether its job is queued again."""
    note: str


def redrive(letters: LaneDeadLetters, letter: DeadLetter) -> Redriven:
    """Redrive a letter.

    Raises:
        UnknownJob: the letter does not exist any more.
        MessageRejected: its id is that of another job now.
    """
    if letter.is_cut:
        return Redriven(False, "not redriven: its message was cut")
    state = letters.redrive(letter)
    if state is State.QUEUED:
        return Redriven(True, "queued again")
    return Redriven(False, f"not redriven: its job is {state}")

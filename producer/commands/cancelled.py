"""Say what a request to cancel a job or a bulk run has changed, from the state after it."""

from imagefleet.shared.jobs.model import State


def is_too_late(state: State) -> bool:
    """Return whether the job or run had ended before, and not by a cancellation."""
    return state in (State.SUCCEEDED, State.FAILED)


def describe_cancelled(state: State) -> str:
    """Return the state in words for a terminal."""
    if is_too_late(state):
        return f"{state} already, so nothing was cancelled"
    return "running, stops after the current step" if state is State.RUNNING else state

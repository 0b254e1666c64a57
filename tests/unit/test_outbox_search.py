"""The search for callbacks that can be sent passes over any number of others, some at a time."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from imagefleet.shared.webhooks.outbox_search import OutboxSearch

_LOOKED_AT = 200


class Due:
    """Due messages that have to wait, and some that can be sent, by how many came after them."""

    def __init__(self, waiting: int, *sendable: int) -> None:
        self.looks = 0
        self._waiting = waiting
        self._sendable = sendable

    def look(self, passed: str | int) -> tuple[list[str], list[str], int]:
        """Answer as outbox_claim.lua does."""
        self.looks += 1
        first = self._waiting - _LOOKED_AT if passed == "" else int(passed)
        found = [str(at) for at in self._sendable if first <= at < first + _LOOKED_AT]
        is_full = first >= 0 and first + _LOOKED_AT <= self._waiting
        return found, [], _LOOKED_AT if is_full else -1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("imagefleet.shared.webhooks.outbox_search.time", clock)
    return clock


def test_few_messages_need_one_look() -> None:
    due = Due(_LOOKED_AT - 1)
    assert OutboxSearch().run(due.look, 1.0) == ([], [])
    assert due.looks == 1


@pytest.mark.parametrize(("sendable", "looks"), [(99_999, 1), (0, 2), (150, 2), (9_000, 47)])
def test_the_longest_due_are_looked_at_first_then_those_that_came_last(
    sendable: int, looks: int
) -> None:
    due = Due(100_000, sendable)
    assert OutboxSearch().run(due.look, 1.0) == ([str(sendable)], [])
    assert due.looks == looks


def test_each_second_the_search_goes_on_with_some_10000_messages(clock: SimpleNamespace) -> None:
    search, due = OutboxSearch(), Due(100_000, 45_000)
    found = []
    for _ in range(10):
        before = due.looks
        found += search.run(due.look, 1.0)[0]
        assert due.looks - before <= 52
        before = due.looks
        found += search.run(due.look, 1.0)[0]
        assert due.looks - before <= 3, "the head, those that came last, and where it found some"
        clock.now += 1.0
    assert set(found) == {"45000"}
    assert found


def test_the_search_begins_anew_after_it_looked_at_all(clock: SimpleNamespace) -> None:
    search, due = OutboxSearch(), Due(30_000)
    for _ in range(5):
        search.run(due.look, 1.0)
        clock.now += 1.0
    due = Due(30_000, 25_000)
    for _ in range(4):
        if search.run(due.look, 1.0)[0]:
            return
        clock.now += 1.0
    raise AssertionError("the message was not found")


def test_one_search_looks_at_some_10000_messages_at_most_however_long_it_takes(
    clock: SimpleNamespace,
) -> None:
    due = Due(100_000)

    def look(passed: str | int) -> tuple[list[str], list[str], int]:
        clock.now += 1.0
        return due.look(passed)

    assert OutboxSearch().run(look, 1.0) == ([], [])
    assert due.looks == 51


def test_a_search_ends_with_messages_to_give_up() -> None:
    """Each of them is a call of its own, and what was claimed must not wait for very many."""
    answers: Iterator[tuple[list[str], list[str], int]] = iter(
        [([], [], 200), ([], ["a", "{}"], 199)]
    )
    assert OutboxSearch().run(lambda passed: next(answers), 1.0) == ([], ["a", "{}"])

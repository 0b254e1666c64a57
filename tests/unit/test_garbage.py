"""A starting process searches for no unreachable cycles, and a started one for new ones only."""

import gc
from collections.abc import Iterator

import pytest

from imagefleet.shared.process.garbage import collecting_later


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Let later tests collect what these made."""
    yield
    gc.unfreeze()


def test_nothing_is_collected_during_a_start_and_its_objects_are_not_searched_later() -> None:
    gc.unfreeze()
    with collecting_later():
        assert not gc.isenabled()
        kept = [[] for _ in range(100)]  # type: ignore[var-annotated]
    assert gc.isenabled()
    assert gc.get_freeze_count() > 100
    assert not any(each is kept for each in gc.get_objects())
    assert any(each is made_later for made_later in [[1]] for each in gc.get_objects())


def test_a_start_that_fails_leaves_the_collector_on_and_freezes_nothing() -> None:
    gc.unfreeze()
    with pytest.raises(ZeroDivisionError), collecting_later():
        raise ZeroDivisionError
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with collecting_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()

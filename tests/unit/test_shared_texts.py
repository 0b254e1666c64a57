"""Hosts share encoded texts; a store that is damaged, broken or hangs costs them a deadline."""

import subprocess
import sys
from collections.abc import Callable
from threading import Event
from typing import Final

import pytest

from imagefleet.shared.errors import StorageUnavailable
from imagefleet.shared.storage.base import StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.process import metrics
from imagefleet.worker.startup.shared_texts import SharedTexts
from tests.support.processes import until

NAME: Final = "0a/1b"
CONTENT: Final = b"the states of a text"


class _OddStore(MemoryStore):
    """It calls `odd` before each read and write, and counts them."""

    def __init__(self, odd: Callable[[], object]) -> None:
        super().__init__()
        self.odd, self.calls = odd, 0

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        self.calls += 1
        self.odd()
        return super().get(key, max_bytes)

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        self.calls += 1
        self.odd()
        return super().put(key, data, content_type)


def _faults(kind: str) -> float:
    return metrics.total(metrics.TEXT_STORE_FAULTS, fault=kind)


def _stored(name: str = NAME) -> MemoryStore:
    """Return a store that has the text."""
    store = MemoryStore()
    SharedTexts(store).put(name, CONTENT)
    until(lambda: store.exists(name) or None)
    return store


def test_a_host_gets_what_another_one_put() -> None:
    texts = SharedTexts(_stored())
    assert texts.get([NAME, "0a/2c"], len(CONTENT)) == {NAME: CONTENT}


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: b"",
        lambda stored: stored[:-1],
        lambda stored: stored + b"x",
        lambda stored: stored[:-1] + b"x",
        lambda stored: b"x" + stored[1:],
    ],
)
def test_a_damaged_text_is_not_returned_and_can_be_replaced(
    damage: Callable[[bytes], bytes],
) -> None:
    store, before = _stored(), _faults("damaged")
    whole = store.get(NAME)
    store.put(NAME, damage(whole), "")
    texts = SharedTexts(store)
    assert texts.get([NAME], len(CONTENT)) == {}
    assert _faults("damaged") == before + 1
    texts.put(NAME, CONTENT)
    until(lambda: store.get(NAME) == whole or None)
    assert texts.get([NAME], len(CONTENT)) == {NAME: CONTENT}


def test_a_text_does_not_stand_for_another() -> None:
    store = _stored()
    store.put("0a/2c", store.get(NAME), "")
    assert SharedTexts(store).get(["0a/2c"], len(CONTENT)) == {}


def test_a_store_that_hangs_is_left_alone_after_one_deadline() -> None:
    now, released, before = [0.0], Event(), _faults("late")
    store = _OddStore(released.wait)
    texts = SharedTexts(store, deadline_s=0.05, pause_s=30.0, clock=lambda: now[0])
    assert texts.get([NAME, "0a/2c"], len(CONTENT)) == {}
    assert _faults("late") == before + 2
    asked = store.calls
    for _ in range(3):
        assert texts.get([NAME], len(CONTENT)) == {}
        texts.put(NAME, CONTENT)
    assert (store.calls, _faults("late")) == (asked, before + 2)
    released.set()
    now[0] = 31.0
    texts.put(NAME, CONTENT)
    until(lambda: store.exists(NAME) or None)
    texts = SharedTexts(store, clock=lambda: now[0])
    assert texts.get([NAME], len(CONTENT)) == {NAME: CONTENT}


@pytest.mark.parametrize("error", [StorageUnavailable("away"), OSError(5, "no"), ValueError("?")])
def test_no_error_leaves_the_store(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise error

    before = _faults("read"), _faults("write")
    assert SharedTexts(_OddStore(fail)).get([NAME], len(CONTENT)) == {}
    SharedTexts(_OddStore(fail)).put(NAME, CONTENT)
    until(lambda: _faults("write") > before[1] or None)
    assert _faults("read") == before[0] + 1
    assert str(error) in caplog.text


def test_a_process_ends_while_its_store_hangs() -> None:
    program = """
from threading import Event
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.startup.shared_texts import SharedTexts
class Hanging(MemoryStore):
    def get(self, key, max_bytes=None):
        Event().wait()
    def put(self, key, data, content_type):
        Event().wait()
texts = SharedTexts(Hanging(), deadline_s=0.01)
texts.put("a", b"")
texts.get(["a"], 0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_store_that_takes_long_gets_a_bounded_number_of_texts() -> None:
    released, before = Event(), _faults("busy")
    store = _OddStore(released.wait)
    texts = SharedTexts(store)
    for number in range(20):
        texts.put(f"0a/{number}", CONTENT)
    assert _faults("busy") == before + 4
    released.set()
    until(lambda: len(list(store.list())) == 16 or None)

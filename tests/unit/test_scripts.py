"""What all server-side scripts must hold to."""

from tests.support.processes import ROOT

SCRIPTS = [
    path for room in ("shared", "worker", "producer") for path in (ROOT / room).rglob("*.lua")
]


def test_messages_go_back_only_by_the_way_that_makes_their_queue_known() -> None:
    pushing = [path.name for path in SCRIPTS if "'RPUSH'" in path.read_text()]
    assert pushing == ["queue.lua"]

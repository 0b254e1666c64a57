"""Rules for all server-side scripts."""

from tests.support.processes import ROOT

SCRIPTS = [
    path for package in ("shared", "worker", "producer") for path in (ROOT / package).rglob("*.lua")
]


def test_only_the_shared_function_requeues_messages_because_it_makes_their_queue_known() -> None:
    pushing = [path.name for path in SCRIPTS if "'RPUSH'" in path.read_text()]
    pushing.remove("check_rights.lua")  # it deletes its keys again
    assert pushing == ["queue.lua"]

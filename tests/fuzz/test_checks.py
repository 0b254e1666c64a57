"""The fuzzer reports what is broken, and finds the case that broke it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fuzz import rounds
from tests.fuzz.cases import Case, MessageCase, RequestCase, WeightsCase
from tests.fuzz.fleet import NAMESPACE, FuzzedFleet
from tests.fuzz.hostile_server import HostileServers
from tests.fuzz.ledger import Ledger, Problem
from tests.fuzz.outcomes import MessageOutcomes, check_what_producers_read
from tests.fuzz.rounds import Round, reduce_cases
from tests.fuzz.settle import Settling
from tests.fuzz.weight_files import WeightsReader
from tests.unit.engine.parity import FOLDER


def test_lost_stuck_and_unreadable_things_and_a_dead_worker_are_problems(tmp_path: Path) -> None:
    ledger = Ledger()
    case = MessageCase(id="m1", message=b'{"headers": {"id": "m1"}}', queue="default.native")
    with FuzzedFleet(tmp_path) as fleet:
        [lost] = MessageOutcomes(fleet, ledger, ()).check([case])
        assert lost.suspects == ["m1"]
        [raw] = check_what_producers_read(fleet, ledger, [], "plain\na line\x1b[31m")
        assert "control characters in the log" in raw.sentence
        assert Settling(fleet, ledger, stall_s=60).wait([]) == []  # nothing is claimed any more
        fleet.worker.freeze()
        fleet.push(case.queue, case.message)
        [stuck] = Settling(fleet, ledger, stall_s=0.5).wait(["j1"])
        assert "1 waiting messages, 1 jobs that have not ended" in stuck.sentence
        assert stuck.suspects == ["m1", "j1"]
        fleet.redis.hset(f"{NAMESPACE}:deliveries", "x", 99)
        [round_and_round] = Settling(fleet, ledger, stall_s=0.5).wait([])
        assert "delivered 99 times" in round_and_round.sentence
        fleet.worker.kill()
        [dead] = Settling(fleet, ledger, stall_s=0.5).wait([])
        assert "the worker ended with exit code -9" in dead.sentence
        assert dead.suspects == ["m1"]


def test_an_ordinary_round_has_no_problems_and_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger()
    cases: list[Case] = [
        RequestCase(id="r1", parameters={"prompt": "a red star"}),
        RequestCase(id="r2", parameters={"prompt": ""}),
        MessageCase(id="m1", message=b"rubbish", queue="default.native"),
    ]
    with HostileServers() as servers, FuzzedFleet(tmp_path) as fleet:
        assert Round(fleet, servers, ledger).run(cases) == []
        assert not fleet.redis.exists(f"{NAMESPACE}:job:r1", f"{NAMESPACE}:dead")
    assert ledger.outcomes["request", "succeeded"] == 1
    assert ledger.outcomes["request", "refused"] == 1
    assert ledger.cases("message") == 1


def test_a_file_of_weights_is_accepted_refused_or_a_problem() -> None:
    ledger, kohya = Ledger(), FOLDER / "loras" / "kohya.safetensors"
    valid = WeightsCase(id="w1", setting="lora", model="older", data=kohya.read_bytes())
    with WeightsReader() as reader:
        assert reader.check([valid, replace(valid, data=b"x")], ledger) == []
        assert ledger.outcomes["file of lora", "accepted"] == 1
        assert ledger.outcomes["file of lora", "refused: checkpoint_error"] == 1
        [unknown] = reader.check([replace(valid, setting="none")], ledger)
        assert "no answer" in unknown.sentence
        assert unknown.suspects == ["w1"]
        assert reader.check([valid], ledger) == []


def test_the_offending_case_is_found_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [RequestCase(id=str(number), parameters={}) for number in range(100)]

    def breaks(some: Sequence[Case], servers: HostileServers, stall_s: float) -> bool:
        return any(case.id == "37" for case in some)

    monkeypatch.setattr(rounds, "_breaks", breaks)
    with HostileServers() as servers:
        for suspects in ((), ("37", "38"), ("1", "2")):
            problem = Problem(sentence="x", suspects=suspects)
            [found] = reduce_cases(cases, [problem], servers, 1.0)
            assert found.id == "37"

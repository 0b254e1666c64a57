"""The plan of a run is parsed once, and again when others have replaced it."""

import pytest

from imagefleet.shared.bulk.file_layout import PLAN
from imagefleet.shared.bulk.plan import Plan, run_id
from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.plan_check import PlanReader
from tests.support.plans import plan_rows


def test_a_plan_is_parsed_only_after_its_file_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    plan = plan_rows(["a"], store)
    loaded, load = list[bytes](), Plan.load

    def counting_load(data: bytes) -> Plan:
        loaded.append(data)
        return load(data)

    monkeypatch.setattr(Plan, "load", counting_load)
    reader = PlanReader(run_id(store.url, plan), store.url)
    assert [reader.read(store), reader.read(store)] == [plan, plan]
    assert len(loaded) == 1
    own = store.get(PLAN)

    other = MemoryStore()
    plan_rows(["b"], other)
    store.put(PLAN, other.get(PLAN), "application/json")
    for _ in range(2):
        with pytest.raises(PlanDamaged, match="holds the plan of another run"):
            reader.read(store)
    store.delete(PLAN)
    with pytest.raises(PlanDamaged, match="is missing"):
        reader.read(store)
    store.put(PLAN, own, "application/json")
    assert reader.read(store) == plan

"""Many threads that connect at the same time ask a cluster for its masters once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from imagefleet.shared.redis_client import cluster_map
from imagefleet.shared.redis_client.cluster_map import ClusterMap
from tests.support.processes import until


class HungNodes:
    """Stands for `NodesManager`: its first answer takes as long as the test lets it."""

    def __init__(self) -> None:
        self.questions = 0
        self.may_answer = threading.Event()

    def __call__(self, *_: object, **__: object) -> "HungNodes":
        self.initialize()
        return self

    def initialize(self) -> None:
        self.questions += 1
        self.may_answer.wait()

    def get_node_from_slot(self, slot: int) -> SimpleNamespace:
        return SimpleNamespace(host="127.0.0.1", port=slot)


def test_threads_that_wait_for_an_answer_share_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = HungNodes()
    monkeypatch.setattr(cluster_map, "NodesManager", nodes)
    servers = ClusterMap([("127.0.0.1", 1)], {})
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(servers.master_of, 7000)
        until(lambda: nodes.questions == 1)
        others = [pool.submit(servers.master_of, 7000 + n) for n in range(7)]
        until(lambda: sum(each.running() for each in others) == 7)
        nodes.may_answer.set()
        assert [each.result()[1] for each in (first, *others)] == [7000, *range(7000, 7007)]
    assert nodes.questions <= 3
    servers.master_of(7000)
    assert nodes.questions > 1

"""Kubernetes is told which workers are idle, through its real protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet.producer.fleet.deletion_costs import ANNOTATION, DeletionCosts
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.process.kubernetes import KubernetesRefusal, Pods
from tests.support.kubernetes_api import KubernetesApi


@pytest.fixture
def api(tmp_path: Path) -> Iterator[KubernetesApi]:
    with KubernetesApi(tmp_path) as server:
        yield server


def _worker(
    pod: str, claims: int = 0, state: WorkerState = WorkerState.READY, process: int = 1
) -> WorkerStatus:
    return WorkerStatus(worker=f"{pod}:{process}:abc", state=state, claims=claims)


def _costs(api: KubernetesApi) -> dict[str, str | None]:
    return {
        name: pod["metadata"].get("annotations", {}).get(ANNOTATION)
        for name, pod in api.pods.items()
    }


def test_idle_workers_cost_less_than_busy_ones_and_quarantined_ones_least(
    api: KubernetesApi,
) -> None:
    api.pods = {name: {"metadata": {}} for name in ("idle", "busy", "broken", "redis")}
    workers = [
        _worker("idle"),
        _worker("busy", 3),
        _worker("broken", state=WorkerState.QUARANTINED),
    ]
    costs = DeletionCosts(Pods(api.url, api.service_account), lambda: workers)
    costs.update()
    assert _costs(api) == {"idle": None, "busy": "100", "broken": None, "redis": None}
    costs.update()
    assert _costs(api) == {"idle": "0", "busy": "100", "broken": "-100", "redis": None}


def test_only_changes_are_written_and_no_gap_between_two_batches(api: KubernetesApi) -> None:
    api.pods = {"a": {"metadata": {}}}
    workers = [_worker("a", 8)]
    costs = DeletionCosts(Pods(api.url, api.service_account), lambda: workers)
    for claims in (8, 8, 0, 8, 0, 8):
        workers[:] = [_worker("a", claims)]
        costs.update()
    assert api.requests == [("PATCH", "a")]


def test_a_pod_that_has_gone_keeps_no_other_from_its_cost(api: KubernetesApi) -> None:
    api.pods = {"b": {"metadata": {}}}
    workers = [_worker("gone", 1), _worker("b", 1)]
    costs = DeletionCosts(Pods(api.url, api.service_account), lambda: workers)
    for _ in range(2):
        costs.update()
    assert _costs(api) == {"b": "100"}
    assert api.requests == [("PATCH", "gone"), ("PATCH", "b")]


def test_a_container_that_was_started_again_does_not_cheapen_its_pod(api: KubernetesApi) -> None:
    api.pods = {"a": {"metadata": {}}}
    workers = [_worker("a", 1), _worker("a", state=WorkerState.LOST, process=2)]
    costs = DeletionCosts(Pods(api.url, api.service_account), lambda: workers)
    costs.update()
    costs.update()
    assert _costs(api) == {"a": "100"}


def test_a_wrong_token_is_said(api: KubernetesApi) -> None:
    (api.service_account / "token").write_text("another")
    with pytest.raises(KubernetesRefusal, match="GET pod a: HTTP Error 401"):
        Pods(api.url, api.service_account).read("a", timeout_s=60)

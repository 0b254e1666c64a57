"""Tell Kubernetes which workers to take away first: those that have nothing in hand.

Input: the status of the workers. Output: the annotation
`controller.kubernetes.io/pod-deletion-cost` of their pods, which a ReplicaSet compares when it has
too many pods.

Source: https://kubernetes.io/docs/concepts/workloads/controllers/replicaset/#pod-deletion-cost
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, Protocol

from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus
from imagefleet.shared.process.kubernetes import KubernetesError, KubernetesRefusal

log = logging.getLogger(__name__)

ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
_PERIOD_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_IN_QUARANTINE: Final = -100
_IDLE: Final = 0
_BUSY: Final = 100


class AnnotatesPods(Protocol):
    """What the costs need of `Pods` in `shared/process/kubernetes.py`."""

    def annotate(self, name: str, annotations: Mapping[str, str], *, timeout_s: float) -> None:
        """Set annotations of a pod, or raise KubernetesError."""
        ...


class DeletionCosts:
    """The deletion costs of the pods of one fleet's workers. One thread uses it."""

    def __init__(
        self, pods: AnnotatesPods, read_workers: Callable[[], Iterable[WorkerStatus]]
    ) -> None:
        self._pods = pods
        self._read_workers = read_workers
        self._written: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._failing = False

    def update_until(self, stopped: threading.Event) -> None:
        """Update the costs every 10 s until `stopped`. The first of several failures is logged."""
        while not stopped.is_set():
            try:
                self.update()
                self._failing = False
            except Exception as error:  # else costs that are wrong by now would stay on the pods
                if not self._failing:
                    log.warning("the deletion costs of pods are not updated: %s", error)
                self._failing = True
            stopped.wait(_PERIOD_S)

    def update(self) -> None:
        """Write the costs that have changed.

        A worker counts as idle once two looks in a row found it so: between two batches it is for a
        moment, and each change is a write for the API server.

        Raises:
            KubernetesError: a pod could not be changed. The others were. A pod that is not in this
                namespace, as a worker's elsewhere, is no error.
            RedisError: the workers could not be read.
        """
        costs: dict[str, int] = {}
        for worker in self._read_workers():  # a pod has several if its container was started again
            pod = host_of(worker.worker)
            costs[pod] = max(costs.get(pod, _IN_QUARANTINE), _cost_of(worker))
        settled = {
            pod: cost for pod, cost in costs.items() if cost == _BUSY or cost == self._seen.get(pod)
        }
        self._seen = costs
        self._written = {pod: cost for pod, cost in self._written.items() if pod in costs}
        failed: KubernetesError | None = None
        for pod, cost in settled.items():
            if self._written.get(pod) == cost:
                continue
            try:
                self._pods.annotate(pod, {ANNOTATION: str(cost)}, timeout_s=_TIMEOUT_S)
                self._written[pod] = cost
            except KubernetesRefusal as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    self._written[pod] = cost
                else:
                    failed = error
            except KubernetesError as error:
                failed = error
        if failed is not None:
            raise failed


def _cost_of(worker: WorkerStatus) -> int:
    if worker.state in (WorkerState.QUARANTINED, WorkerState.LOST):
        return _IN_QUARANTINE
    return _BUSY if worker.claims else _IDLE

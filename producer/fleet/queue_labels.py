"""Choose the labels of queues for Prometheus, so that producers cannot make series.

Input: workers and offers. Output: the model and the shape of a queue; `other` stands for what
nobody offers. Offers stay when their workers leave, so a fleet without workers keeps its labels.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from imagefleet.shared.jobs.fleet_status import QueueStatus
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL, NATIVE_SHAPE
from imagefleet.shared.jobs.worker_status import WorkerState, WorkerStatus

OTHER: Final = "other"


class QueueLabels(NamedTuple):
    """The labels of a queue."""

    model: str
    shape: str
    work: str


class OfferedModels:
    """The models that workers make, or have made lately, and the shapes of each."""

    def __init__(
        self,
        workers: Iterable[WorkerStatus],
        offers: Mapping[str, Offer],
        declared: Collection[str] = (),
    ) -> None:
        """
        Args:
            offers: by model; `default` has that of the jobs that name none.
            declared: models of workers that have not announced them yet.
        """
        shapes: defaultdict[str, set[str]] = defaultdict(lambda: {NATIVE_SHAPE})
        for model in (DEFAULT_MODEL, *declared):
            shapes[model].add(NATIVE_SHAPE)
        for model, offer in offers.items():
            shapes[model] |= {f"{height}x{width}" for height, width in offer.shapes}
        ready: Counter[str] = Counter()
        for worker in workers:
            if worker.model:
                shapes[worker.model] |= set(worker.shapes)
                shapes[DEFAULT_MODEL] |= set(worker.shapes)
                ready[worker.model] += worker.state is WorkerState.READY
        self._shapes = dict(shapes)
        self._ready = ready
        default = offers.get(DEFAULT_MODEL)
        self._default = None if default is None else default.model

    def labels(self, queue: QueueStatus) -> QueueLabels:
        """Return the labels of a queue."""
        model = queue.model if queue.model in self._shapes else OTHER
        shape = queue.shape if queue.shape in self._shapes.get(model, ()) else OTHER
        return QueueLabels(model, shape, "rows" if queue.datasets else "jobs")

    def always_exported(self) -> Iterator[QueueLabels]:
        """Yield the labels whose series exist even while nothing waits, for sums and increases."""
        for model in (*self._shapes, OTHER):
            shape = OTHER if model == OTHER else NATIVE_SHAPE
            yield from (QueueLabels(model, shape, work) for work in ("jobs", "rows"))

    def ready_workers(self) -> Iterator[tuple[str, int]]:
        """Yield each model and how many workers take work for it."""
        for model in self._shapes:
            yield model, self._ready_for(model)

    def _ready_for(self, model: str) -> int:
        if model != DEFAULT_MODEL:
            return self._ready[model]
        return self._ready.total() if self._default is None else self._ready[self._default]

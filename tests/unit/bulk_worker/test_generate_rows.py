"""`RowGenerator` holds few images at a time, and ends soon when its worker drains."""

import io
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow, Source
from imagefleet.shared.errors import ImagefleetError, LeaseLost, StorageDenied
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.bulk.generate_rows import RowGenerator
from imagefleet.worker.bulk.samples import Spool
from imagefleet.worker.bulk.shard_checkpoints import ShardCheckpoints
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.bulk.tar import read_tar
from imagefleet.worker.devices.row_backlog import RowBacklog
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.queues.claim_types import Claimed
from tests.support.processes import until

TAG = "1.1"
CAPACITY = 4
ADDRESS = "https://example.org/a.png"
Fetch = Callable[[JobRequest, Shape], tuple[InitImage, ...]]


@dataclass
class _Pixels:
    """Counts the arrays of pixels that are in memory."""

    references: list["weakref.ref[Any]"] = field(default_factory=list)

    def watch(self, pixels: Any) -> None:
        # A view of another array keeps that array in memory, and may itself be forgotten.
        self.references.append(weakref.ref(pixels if pixels.base is None else pixels.base))

    def alive(self) -> int:
        return len({id(each()) for each in self.references if each() is not None})


class _Host:
    """A shard of `rows` on a host whose devices are a thread that takes its batches."""

    def __init__(
        self,
        rows: list[ShardRow],
        fetch: Fetch,
        report: Callable[[], None],
        store: MemoryStore | None = None,
    ) -> None:
        self.store, self.generated = store or MemoryStore(), _Pixels()
        self.backlog = RowBacklog(CAPACITY)
        self.backlog.add_shard(
            Claimed(tag=TAG, list_key="q", message="m", deliveries=1, attempt=TAG)
        )
        self.samples = 0
        self._engine = FakeEngine(capacity=CAPACITY)
        self._encoders, self._fetchers = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
        self._stopped = threading.Event()
        self._devices = threading.Thread(target=self._generate)
        shard = ShardPlan(name="00000", rows=len(rows), samples=len(rows), sha256="a" * 64)
        plan = Plan(
            shard_size=len(rows),
            source=Source(name="a.txt"),
            rows=len(rows),
            samples=len(rows),
            shards=(shard,),
            created_at="now",
        )
        context = SimpleNamespace(
            backlog=self.backlog,
            engine=self._engine,
            encoders=self._encoders,
            image_fetchers=self._fetchers,
            fetch_image=fetch,
            checkpoint_s=3600.0,
            max_deliveries=3,
            retry_while_unavailable=lambda act, what: act(),
            claims=SimpleNamespace(reset_deliveries=lambda message: None),
        )
        self.spool = Spool()

        def count(done: int, failed: int) -> None:
            self.samples = done
            report()

        self.generator = RowGenerator(
            cast(ShardContext, context),
            TAG,
            plan,
            shard,
            rows,
            ShardCheckpoints(self.store, shard, plan.format, lambda: None),
            self.spool,
            count,
        )

    def __enter__(self) -> "_Host":
        self._devices.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._devices.join()
        self._fetchers.shutdown()
        self._encoders.shutdown()
        self.spool.__exit__()

    def stored(self) -> int:
        """Return the number of samples in the checkpoints."""
        files = [io.BytesIO(self.store.get(key)) for key in self.store.list()]
        return sum(len(list(read_tar(file))) for file in files)

    def _generate(self) -> None:
        while not self._stopped.wait(0.001):
            self._generate_batch()

    def _generate_batch(self) -> None:
        batch = self.backlog.pop_slots(CAPACITY)
        if batch:
            running = self._engine.start_batch([slot.spec for slot in batch], batch[0].work.shape)
            list(running)
            for slot, image in zip(batch, running.images(), strict=True):
                copied = image.copy()
                self.generated.watch(copied)
                slot.work.deliver(slot.index, copied)


def _rows(count: int, image: str | None) -> list[ShardRow]:
    return [ShardRow(row=row, prompt=f"{row}", seed=row, image=image) for row in range(count)]


@pytest.fixture
def fetched() -> _Pixels:
    return _Pixels()


@pytest.fixture
def fetch(fetched: _Pixels) -> Fetch:
    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage, ...]:
        pixels = np.full((shape.height, shape.width, 3), request.seed, np.uint8)
        fetched.watch(pixels)
        return (InitImage(pixels=pixels, strength=0.8, digest=f"sha256:{request.seed}"),)

    return fetch


@pytest.mark.parametrize("starts_from_images", [True, False])
def test_the_images_of_a_shard_leave_the_memory_before_its_end(
    fetch: Fetch, fetched: _Pixels, starts_from_images: bool
) -> None:
    alive: list[int] = []

    def count_alive() -> None:
        alive.append(fetched.alive() + host.generated.alive())

    rows = _rows(200, None)
    if starts_from_images:
        rows = [row.model_copy(update={"image": f"{ADDRESS}?{row.row}"}) for row in rows]
    with _Host(rows, fetch, count_alive) as host:
        host.generator.generate()
        assert host.samples == 200
        assert len(host.generated.references) == 200
        assert len(fetched.references) == (200 if starts_from_images else 0)
    assert alive[-1] <= CAPACITY  # those of the latest batch


def test_metadata_name_images_without_credentials_and_an_attempt_resumes_with_them(
    fetch: Fetch, fetched: _Pixels
) -> None:
    address = "https://example.org/a.png?v=1&X-Amz-Signature=hunter2"
    rows = [row.model_copy(update={"mask_image": address}) for row in _rows(3, address)]
    with _Host(rows, fetch, lambda: None) as host:
        host.generator.generate()
        documents = [sample.document for sample in host.spool]
    shown = "https://example.org/a.png?v=1&X-Amz-Signature=***"
    assert [(each["init_image"], each["mask_image"]) for each in documents] == [(shown, shown)] * 3
    with _Host(rows, fetch, lambda: None, host.store) as second:
        second.generator.generate()
        assert (second.samples, len(second.generated.references)) == (3, 0)


def test_stored_samples_get_the_copied_columns_that_the_plan_has_now(
    fetch: Fetch, fetched: _Pixels
) -> None:
    rows = _rows(3, ADDRESS)
    with _Host(rows, fetch, lambda: None) as host:
        host.generator.generate()
    corrected = [row.model_copy(update={"extra": {"caption": f"no {row.row}"}}) for row in rows]
    with _Host(corrected, fetch, lambda: None, host.store) as second:
        second.generator.generate()
        assert (second.samples, len(second.generated.references)) == (3, 0)
        extras = [sample.document["extra"] for sample in second.spool]
    assert extras == [{"caption": "no 0"}, {"caption": "no 1"}, {"caption": "no 2"}]


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Return an event for which slow fetches wait. It is set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def _generate(host: _Host, errors: list[ImagefleetError]) -> None:
    try:
        host.generator.generate()
    except ImagefleetError as error:
        errors.append(error)


def test_a_drain_stores_finished_samples_while_images_are_still_fetched(
    released: threading.Event,
) -> None:
    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage, ...]:
        released.wait()
        return ()

    errors: list[ImagefleetError] = []
    rows = _rows(12, None) + [
        ShardRow(row=row, prompt="slow", seed=row, image=ADDRESS) for row in range(12, 60)
    ]
    with _Host(rows, fetch, lambda: None) as host:
        attempt = threading.Thread(target=_generate, args=(host, errors))
        attempt.start()
        until(lambda: host.samples == 12)
        host.backlog.close(LeaseLost("this worker is draining"))
        attempt.join(300)
        ended = not attempt.is_alive()
        stored = host.stored()
        released.set()
        attempt.join()
    assert (ended, stored) == (True, 12)
    assert [str(error) for error in errors] == ["this worker is draining"]


def test_an_error_of_the_host_ends_the_attempt_while_images_are_still_fetched(
    released: threading.Event,
) -> None:
    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage, ...]:
        if request.seed:
            released.wait()
        raise StorageDenied("no right to read the image")

    errors: list[ImagefleetError] = []
    with _Host(_rows(60, ADDRESS), fetch, lambda: None) as host:
        attempt = threading.Thread(target=_generate, args=(host, errors))
        attempt.start()
        attempt.join(300)
        ended = not attempt.is_alive()
        released.set()
        attempt.join()
    assert ended
    assert [type(error) for error in errors] == [StorageDenied]

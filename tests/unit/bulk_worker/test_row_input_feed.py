"""The feed fetches the images of some rows ahead, tries again, and ends every row."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from imagefleet.shared.errors import (
    ImagefleetError,
    InputUnavailable,
    InvalidInput,
    LeaseLost,
    StorageUnavailable,
)
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.bulk.row_input_feed import RowInputFeed
from imagefleet.worker.bulk.shard_context import ShardContext
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.devices.slots import InitInput
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents

SHAPE = Shape(height=8, width=8)
IMAGE = InitImage(pixels=np.zeros((8, 8, 3), np.uint8), strength=0.8, digest="sha256:0")


def _rows(count: int) -> list[RowWork]:
    spec = ImageSpec(prompt="p", num_inference_steps=1, guidance_scale=1.0)
    return [RowWork(shape=SHAPE, specs=(spec,), row=row) for row in range(count)]


def _even_from_images(work: RowWork) -> JobRequest:
    image = f"https://example.org/{work.row}.png" if work.row % 2 == 0 else None
    return JobRequest.parse({"prompt": "p", "seed": 1, "image": image})


class _Feed:
    """A feed whose rows are numbered. Those with an even number start from an image, unless
    `request_of` says otherwise."""

    def __init__(
        self,
        fetch: Callable[[JobRequest, Shape], tuple[InitInput, ...]],
        request_of: Callable[[RowWork], JobRequest] = _even_from_images,
        threads: int = 4,
    ) -> None:
        self.added: list[RowWork] = []
        self.threads = ThreadPoolExecutor(threads)
        context = SimpleNamespace(
            fetch_image=fetch,
            image_fetchers=self.threads,
            engine=SimpleNamespace(capacity=8),
            retry_while_unavailable=lambda act, what: act(),
        )
        self.expected: list[RowWork] = []
        self.feed = RowInputFeed(
            cast(ShardContext, context),
            request_of,
            expect_row=self.expected.append,
            add_row=self.added.append,
        )

    def run(self) -> None:
        """Start what may start now, and wait for it."""
        self.feed.start_fetches()
        self.threads.shutdown()


def _error_of(work: RowWork) -> ImagefleetError:
    with pytest.raises(ImagefleetError) as raised:
        work.wait_for_images()
    return raised.value


def test_rows_without_an_image_are_not_kept_and_the_others_get_their_pixels() -> None:
    rows, feed = _rows(4), _Feed(lambda request, shape: (IMAGE,))
    assert feed.feed.take(rows) == [rows[1], rows[3]]
    before = feed.feed.all_started
    feed.run()
    assert (before, feed.feed.all_started) == (False, True)
    assert set(feed.added) == {rows[0], rows[2]}
    assert all(spec.init_image is IMAGE for work in feed.added for spec in work.specs)


def test_rows_with_other_latents_or_another_share_get_their_own() -> None:
    starts = [("a", 0.8), ("a", 0.8), ("a", 0.6), ("b", 0.6)]
    fetched: list[tuple[str | None, float | None]] = []

    def request_of(work: RowWork) -> JobRequest:
        latents, share = starts[work.row]
        parameters = {"prompt": "p", "seed": 1, "latents": latents, "denoising_start": share}
        return JobRequest.parse(parameters)

    def fetch(request: JobRequest, shape: Shape) -> tuple[InputLatents]:
        assert request.denoising_start is not None
        fetched.append((request.latents, request.denoising_start))
        values = np.zeros((1, 1, 4), np.float32)
        start = request.denoising_start
        return (InputLatents(values=values, denoising_start=start, digest=""),)

    rows, feed = _rows(4), _Feed(fetch, request_of, threads=1)
    assert feed.feed.take(rows) == []
    feed.run()
    assert fetched == [("a", 0.8), ("a", 0.6), ("b", 0.6)]
    found = [spec.input_latents for work in feed.added for spec in work.specs]
    assert [each and each.denoising_start for each in found] == [0.8, 0.8, 0.6, 0.6]


def test_only_some_rows_are_fetched_ahead() -> None:
    feed = _Feed(lambda request, shape: (IMAGE,))
    feed.feed.take(_rows(200))
    assert feed.feed.start_fetches() == 24  # three batches of 8
    assert feed.feed.start_fetches() == 0
    for _ in range(1_000):
        if feed.added:
            break
        threading.Event().wait(0.01)
    feed.feed.release(feed.added[0])
    assert feed.feed.start_fetches() == 1
    feed.feed.stop()
    assert (feed.feed.all_started, feed.feed.start_fetches()) == (True, 0)
    feed.threads.shutdown()


def test_a_server_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{RowInputFeed.__module__}.time.sleep", lambda seconds: None)
    asked: dict[Any, int] = {}

    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage]:
        asked[request.image] = asked.get(request.image, 0) + 1
        if asked[request.image] < 3 or "/2.png" in str(request.image):
            raise InputUnavailable("image: its server answers 503")
        return (IMAGE,)

    rows, feed = _rows(3), _Feed(fetch)
    feed.feed.take(rows)
    feed.run()
    assert feed.added == [rows[0]]
    assert isinstance(_error_of(rows[2]), InputUnavailable)
    assert asked == {"https://example.org/0.png": 3, "https://example.org/2.png": 4}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidInput("image: there is none"), InvalidInput),
        (StorageUnavailable("the store does not answer"), StorageUnavailable),
        (RuntimeError("a bug"), InvalidInput),
    ],
)
def test_a_row_whose_image_cannot_be_read_ends_with_the_reason(
    error: Exception, kind: type[ImagefleetError]
) -> None:
    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage]:
        raise error

    rows, feed = _rows(1), _Feed(fetch)
    feed.feed.take(rows)
    feed.run()
    assert (feed.added, type(_error_of(rows[0]))) == ([], kind)


def test_abandoned_rows_are_not_fetched() -> None:
    fetched: list[str | None] = []
    started, released = threading.Event(), threading.Event()

    def fetch(request: JobRequest, shape: Shape) -> tuple[InitImage]:
        fetched.append(request.image)
        started.set()
        released.wait()
        return (IMAGE,)

    rows, feed = _rows(20), _Feed(fetch)
    feed.feed.take(rows)
    feed.feed.start_fetches()
    started.wait()
    assert feed.expected == rows[::2]
    for work in feed.expected:
        work.abandon(LeaseLost("this worker is draining"))
        work.release_images()
    released.set()
    feed.threads.shutdown()
    assert len(fetched) <= 4  # those that had begun
    assert not feed.added
    assert all(spec.init_image is None for work in rows for spec in work.specs)

"""Input images are read as diffusers reads them, or refused with a clear reason."""

import hashlib
import io
import socket
import struct
import threading
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagefleet import Client
from imagefleet.shared.errors import (
    ImagefleetError,
    InputUnavailable,
    InvalidInput,
    JobFailed,
)
from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.images.file_structure import count_jpeg_scans
from imagefleet.worker.jobs.attempt import plan_attempt
from imagefleet.worker.jobs.input_images import InputImages
from imagefleet.worker.outbound.address_policy import AllowList
from tests.support.image_server import ImageServer, SlowImage, cut_short, stalled, status
from tests.support.jobs import finish
from tests.support.processes import StartWorker, Worker, until
from tests.support.settings import worker_settings

SHAPE = Shape(height=32, width=64)
INFO = FakeEngine().info
ALLOW_LOCALHOST = AllowList.parse(["127.0.0.1"])


def _random_image(seed: int, size: tuple[int, int] = (90, 70), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def _file(image: Image.Image, kind: str = "PNG", **given: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **given)
    return buffer.getvalue()


def _bomb() -> bytes:
    """Return a small PNG whose header says 30,000 pixels a side."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _jpeg_of_many_scans(scans: int, size: tuple[int, int] = (640, 640)) -> bytes:
    """Return a progressive JPEG whose last scan is repeated until there are `scans`."""
    flat = _random_image(11, (8, 8)).resize(size, Image.Resampling.NEAREST)
    data = _file(flat, "JPEG", progressive=True, quality=30)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + (scans - count_jpeg_scans(data)) * last + data[-2:]


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def fetch(store: ObjectStore) -> Callable[..., InitImage]:
    def fetched(timeout_s: float = 60.0, **parameters: Any) -> InitImage:
        # A request of release 0.1.0 may name any text as its image.
        request = JobRequest.parse({"prompt": "a", "seed": 1} | parameters, stored=True)
        input_images = InputImages(store, ALLOW_LOCALHOST, timeout_s=timeout_s)
        (init_image,) = input_images.fetch(request, SHAPE)
        assert isinstance(init_image, InitImage)
        return init_image

    return fetched


def test_an_image_is_resized_to_the_shape_of_the_job_as_diffusers_does(
    fetch: Callable[..., InitImage],
) -> None:
    image = _random_image(1)
    with ImageServer({"/a.png": _file(image)}) as image_server:
        init_image = fetch(image=f"{image_server.url}/a.png", strength=0.5)
    expected = image.resize((64, 32), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(init_image.pixels, np.asarray(expected))
    assert (init_image.strength, init_image.inpaint_mask) == (0.5, None)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_the_usual_formats_and_modes_are_read(
    fetch: Callable[..., InitImage], kind: str, mode: str
) -> None:
    image = _random_image(2, mode=mode) if mode != "P" or kind == "PNG" else _random_image(2)
    with ImageServer({"/a": _file(image, kind)}) as image_server:
        assert fetch(image=f"{image_server.url}/a").pixels.shape == (32, 64, 3)


def test_grey_of_sixteen_bits_is_scaled_and_not_clipped(fetch: Callable[..., InitImage]) -> None:
    greys = np.linspace(0, 65535, 32 * 64).astype(np.uint16).reshape(32, 64)
    with ImageServer({"/a.png": _file(Image.fromarray(greys))}) as image_server:
        pixels = fetch(image=f"{image_server.url}/a.png").pixels
    np.testing.assert_array_equal(pixels, np.stack([greys // 257] * 3, axis=-1))


def test_an_image_is_rotated_as_its_exif_orientation_says(fetch: Callable[..., InitImage]) -> None:
    image = _random_image(3, (64, 32))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    with ImageServer({"/a": _file(image, exif=exif.tobytes())}) as image_server:
        pixels = fetch(image=f"{image_server.url}/a").pixels
    np.testing.assert_array_equal(pixels, np.asarray(image)[::-1, ::-1])


def test_a_side_that_is_too_long_to_resize_is_refused(fetch: Callable[..., InitImage]) -> None:
    """Resizing it would hold the GIL for seconds, so that the worker could lose its lease."""
    limit = pytest.raises(InvalidInput, match=r"image: 65536x1; must be .* 65,535 wide and high")
    with ImageServer({"/a": _file(Image.new("L", (65_536, 1)))}) as image_server, limit:
        fetch(image=f"{image_server.url}/a")


def test_objects_of_the_worker_s_store_are_read_by_key_and_by_url(
    fetch: Callable[..., InitImage], store: ObjectStore
) -> None:
    stored = store.put("jobs/a/0.png", _file(_random_image(4)), "image/png")
    by_key, by_url = fetch(image=stored.key), fetch(image=stored.url)
    assert by_key.digest == by_url.digest
    np.testing.assert_array_equal(by_key.pixels, by_url.pixels)


def test_the_mask_is_true_where_the_mask_image_is_white(
    fetch: Callable[..., InitImage], store: ObjectStore
) -> None:
    store.put("a.png", _file(_random_image(5)), "image/png")
    mask = np.zeros((32, 64), np.uint8)
    mask[:, 20:] = 255
    store.put("mask.png", _file(Image.fromarray(mask)), "image/png")
    init_image = fetch(image="a.png", mask_image="mask.png")
    assert init_image.inpaint_mask is not None
    np.testing.assert_array_equal(init_image.inpaint_mask, mask > 0)
    without = fetch(image="a.png")
    assert init_image.digest != without.digest
    files = [
        hashlib.sha256(_file(image)).hexdigest()
        for image in (_random_image(5), Image.fromarray(mask))
    ]
    digests = [init_image.image_digest, init_image.mask_image_digest]
    assert digests == [f"sha256:{digest}" for digest in files]
    assert (without.image_digest, without.mask_image_digest) == (f"sha256:{files[0]}", "")


UNUSABLE: list[tuple[Any, type[ImagefleetError], str]] = [
    (b"<html>", InvalidInput, "cannot be read as PNG, JPEG, WEBP$"),
    (b"", InvalidInput, "cannot be read"),
    (_file(_random_image(6))[:2000], InvalidInput, "cannot be read"),
    (_file(_random_image(6), "GIF"), InvalidInput, "cannot be read as PNG, JPEG, WEBP"),
    (_bomb(), InvalidInput, "pixels|exceeds limit"),
    (b"x" * (MAX_INPUT_BYTES + 1), InvalidInput, "at most 20,000,000 bytes"),
    (status(404), InvalidInput, "answers 404"),
    (status(403), InvalidInput, "answers 403"),
    (status(302, location="http://169.254.169.254/"), InvalidInput, "redirects are not followed"),
    (status(503), InputUnavailable, "answers 503"),
    (status(429), InputUnavailable, "answers 429"),
    (cut_short(_file(_random_image(6))), InputUnavailable, "before the file was complete"),
]


@pytest.mark.parametrize(("response", "error", "message"), UNUSABLE)
def test_an_unusable_image_is_refused_with_the_reason(
    fetch: Callable[..., InitImage], response: Any, error: type[ImagefleetError], message: str
) -> None:
    with (
        ImageServer({"/a": response}) as image_server,
        pytest.raises(error, match=f"^image: .*({message})"),
    ):
        fetch(image=f"{image_server.url}/a")


def test_a_jpeg_of_too_many_scans_is_refused_without_decoding_it(
    fetch: Callable[..., InitImage], store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("bomb.jpeg", _jpeg_of_many_scans(5_000), "image/jpeg")
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(InvalidInput, match=r"^image: .* has 5,000 scans; must have at most 100$"):
        fetch(image="bomb.jpeg")


@pytest.mark.parametrize(("kind", "part"), [("JPEG", "segments"), ("PNG", "chunks")])
def test_an_image_of_a_million_parts_is_refused_without_decoding_it(
    fetch: Callable[..., InitImage],
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    part: str,
) -> None:
    data = _file(_random_image(11), kind)
    start, filler = (2, b"\xff\xfe\0\2") if kind == "JPEG" else (33, b"\0\0\0\0abCdcrc4")
    store.put("bomb", data[:start] + 1_000_000 * filler + data[start:], "image/png")
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(InvalidInput, match=f"^image: .* has more than 10,000 {part}$"):
        fetch(image="bomb")


def test_an_ordinary_progressive_jpeg_is_read(
    fetch: Callable[..., InitImage], store: ObjectStore
) -> None:
    data = _file(_random_image(12, (640, 640)), "JPEG", progressive=True)
    assert 1 < count_jpeg_scans(data) <= 20
    store.put("a.jpeg", data, "image/jpeg")
    store.put("most.jpeg", _jpeg_of_many_scans(100), "image/jpeg")
    assert fetch(image="a.jpeg").pixels.shape == (32, 64, 3)
    assert fetch(image="most.jpeg").pixels.shape == (32, 64, 3)


def test_only_scans_of_the_image_itself_are_counted() -> None:
    thumbnail = b"Exif\0\0" + 200 * b"\xff\xda"
    data = _file(_random_image(13), "JPEG", exif=thumbnail)
    assert data.count(b"\xff\xda") > 200
    assert count_jpeg_scans(data) == 1
    assert count_jpeg_scans(data + data) == 1, "what follows the end of the image is not decoded"


def test_a_server_that_stalls_ends_at_the_time_limit(fetch: Callable[..., InitImage]) -> None:
    released = threading.Event()
    responses = {"/a": stalled(_file(_random_image(7))[:100], released)}
    with ImageServer(responses) as image_server:
        try:
            with pytest.raises(InputUnavailable, match="not fetched within 1 s"):
                fetch(timeout_s=1.0, image=f"{image_server.url}/a")
        finally:
            released.set()


def test_a_name_server_that_does_not_answer_ends_at_the_time_limit(
    fetch: Callable[..., InitImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: released.wait() and [])
    try:
        with pytest.raises(InputUnavailable, match="not fetched within 1 s"):
            fetch(timeout_s=1.0, image="http://slow.example/a.png")
    finally:
        released.set()


def test_a_server_that_refuses_connections_is_an_error_that_may_pass(
    fetch: Callable[..., InitImage],
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(InputUnavailable, match=r"image: 127\.0\.0\.1:\d+: .*refused"):
            fetch(image=f"http://127.0.0.1:{nobody.getsockname()[1]}/a")


def test_internal_addresses_are_refused_as_for_callbacks(store: ObjectStore) -> None:
    input_images = InputImages(store, AllowList())
    for host in ("127.0.0.1", "169.254.169.254", "[::1]"):
        request = JobRequest(prompt="a", image=f"http://{host}/a.png")
        with pytest.raises(InvalidInput, match="IMAGEFLEET_CALLBACK_ALLOW"):
            input_images.fetch(request, SHAPE)


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("not/there.png", InvalidInput, "there is no not/there.png"),
        ("file:///etc/passwd", InvalidInput, "or an object of"),
        ("s3://elsewhere/a.png", InvalidInput, "or an object of"),
        ("../secret.png", InvalidInput, "image: must be plain names"),
        ("/etc/passwd", InvalidInput, "image: must be plain names"),
    ],
)
def test_only_the_worker_s_store_is_read(
    fetch: Callable[..., InitImage], address: str, error: type[ImagefleetError], message: str
) -> None:
    with pytest.raises(error, match=message):
        fetch(image=address)


def test_an_object_larger_than_the_limit_is_never_read_into_memory(
    store: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "store").mkdir()
    with (tmp_path / "store" / "samples.tar").open("wb") as file:
        file.truncate(91_000_000)
    input_images = InputImages(store, AllowList())
    request = JobRequest(prompt="a", image="samples.tar")

    def fetch() -> str:
        with pytest.raises(InvalidInput) as refused:
            input_images.fetch(request, SHAPE)
        return str(refused.value)

    tracemalloc.start()
    try:
        with ThreadPoolExecutor(3) as threads:
            refusals = [job.result() for job in [threads.submit(fetch) for _ in range(3)]]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    limit = "image: has 91,000,000 bytes; must be at most 20,000,000 bytes"
    assert refusals == 3 * [limit]
    assert peak_bytes < 5_000_000


def test_a_failed_fetch_leaves_nothing_of_the_image_in_its_error(store: ObjectStore) -> None:
    store.put("a.png", b"no image", "image/png")
    input_images = InputImages(store, AllowList())
    attempt = plan_attempt("j", JobRequest(prompt="a", image="a.png"), INFO)
    input_images.start_fetch(attempt)
    with pytest.raises(InvalidInput) as raised:
        attempt.wait_for_images()
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    # The frames of that module would hold the bytes of the image.
    assert InputImages.fetch.__code__.co_filename not in files
    assert raised.value.__cause__ is raised.value.__context__ is None


@pytest.mark.parametrize("key", ["jobs", "jobs/a"])
def test_a_folder_of_the_store_is_invalid_input(
    fetch: Callable[..., InitImage], store: ObjectStore, key: str
) -> None:
    store.put("jobs/a/0.png", b"x", "image/png")
    with pytest.raises(InvalidInput, match=f"^image: there is no {key} in file://"):
        fetch(image=key)


def test_an_attempt_removed_while_it_is_fetched_never_becomes_ready(store: ObjectStore) -> None:
    released = threading.Event()
    responses: dict[str, Any] = {
        "/slow": stalled(b"", released),
        "/quick": _file(_random_image(10)),
    }
    with ImageServer(responses) as image_server:
        input_images = InputImages(store, ALLOW_LOCALHOST)
        slow, quick = (
            plan_attempt(name, JobRequest(prompt="a", image=f"{image_server.url}/{name}"), INFO)
            for name in ("slow", "quick")
        )
        input_images.start_fetch(slow)
        input_images.start_fetch(quick)
        [ready] = until(input_images.pop_ready)
        assert ready is quick
        assert quick.specs[0].init_image is not None
        assert input_images.pop_all() == [slow]
        released.set()
        with pytest.raises(InvalidInput):
            slow.wait_for_images()
        assert input_images.pop_ready() == []
        assert input_images.pop_all() == []


def test_a_worker_runs_jobs_with_input_images_without_delaying_others(tmp_path: Path) -> None:
    released = threading.Event()
    responses: dict[str, Any] = {
        "/one.png": _file(_random_image(8)),
        "/other.png": _file(_random_image(9)),
        "/slow.png": stalled(b"\x89PNG", released),
    }
    with ImageServer(responses) as image_server, LocalRedisServer(tmp_path / "redis") as server:
        settings = worker_settings(
            server.url,
            tmp_path,
            IMAGEFLEET_MODEL="fake:seconds=0.01",
            IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1",
        )
        worker = Worker(tmp_path, settings)
        worker.await_log("ready after")
        client = Client(server.url)
        slow = client.submit("a", image=f"{image_server.url}/slow.png")
        plain = client.submit("a", seed=1)
        one, again, other = (
            client.submit("a", seed=1, image=f"{image_server.url}/{name}.png")
            for name in ("one", "one", "other")
        )
        missing = client.submit("a", image=f"{image_server.url}/missing.png")
        digests = [job.result(timeout=900).images[0].sha256 for job in (plain, one, again, other)]
        assert len(set(digests)) == 4  # the job's id is in the file
        with pytest.raises(JobFailed, match="answers 404") as failed:
            missing.result(timeout=900)
        assert failed.value.failure_code == "invalid_input"
        assert not slow.status().done
        released.set()
        assert worker.terminate() == 0
        pixels = [
            np.asarray(Image.open(tmp_path / "store" / job.status().result.images[0].key))  # type: ignore[union-attr]
            for job in (plain, one, again, other)
        ]
    np.testing.assert_array_equal(pixels[1], pixels[2])
    assert not np.array_equal(pixels[0], pixels[1])
    assert not np.array_equal(pixels[1], pixels[3])


def test_jobs_on_a_slow_server_do_not_delay_another_tenant(
    start: StartWorker, producer: Client
) -> None:
    slow = SlowImage(_file(_random_image(14, (64, 64))))
    with ImageServer({"/slow.png": slow, "/quick.png": _file(_random_image(15))}) as image_server:
        try:
            worker = start(IMAGEFLEET_CALLBACK_ALLOW="127.0.0.1")
            worker.await_log("ready after")
            begun = time.monotonic()
            flood = producer.submit_many(
                [f"flood {n}" for n in range(600)],
                image=f"{image_server.url}/slow.png",
                tenant="a",
            )
            until(lambda: slow.begun)
            urgent = producer.submit_many([f"b {n}" for n in range(20)], priority=0, tenant="b")
            quick = f"{image_server.url.replace('127.0.0.1', 'localhost')}/quick.png"
            assert finish(producer, urgent) == {State.SUCCEEDED}
            other = producer.submit("c", image=quick, tenant="c")
            assert finish(producer, [other]) == {State.SUCCEEDED}
            statuses = producer.statuses(job.id for job in flood)
            fetches = slow.begun
            if time.monotonic() < begun + 25:  # a fetch ends after 30 s
                assert not any(each.done or each.retries for each in statuses), "no fetch has ended"
                assert 1 <= fetches <= 6
            assert sum(each.state is State.RUNNING for each in statuses) <= 32

            def all_wait() -> bool:
                statuses = producer.statuses(job.id for job in flood)
                return all(each.state is State.RUNNING or each.retry_at for each in statuses)

            until(all_wait)
        finally:
            slow.released.set()
        assert finish(producer, flood) == {State.SUCCEEDED}
        assert worker.terminate() == 0

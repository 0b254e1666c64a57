"""What a job starts from comes as diffusers would read it, or with a clear reason not to."""

import io
import socket
import struct
import threading
import zlib
from collections.abc import Callable
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
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.engine.interface import InitImage, Shape
from imagefleet.worker.jobs.attempt import plan_attempt
from imagefleet.worker.jobs.input_images import LARGEST_BYTES, InputImages
from imagefleet.worker.outbound.address_policy import AllowList
from tests.support.gallery import Gallery, broken_off, endless, status
from tests.support.processes import Worker, until

SHAPE = Shape(height=32, width=64)
INFO = FakeEngine().info
HERE = AllowList.parse(["127.0.0.1"])


def _painting(seed: int, size: tuple[int, int] = (90, 70), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def _file(image: Image.Image, kind: str = "PNG", **given: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **given)
    return buffer.getvalue()


def _bomb() -> bytes:
    """A small PNG that says it is 30,000 pixels a side."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def fetch(store: ObjectStore) -> Callable[..., InitImage]:
    def fetched(total_s: float = 60.0, **parameters: Any) -> InitImage:
        request = JobRequest.parse({"prompt": "a"} | parameters)
        init_image = InputImages(store, HERE, total_s=total_s).fetch(request, SHAPE)
        assert init_image is not None
        return init_image

    return fetched


def test_a_picture_is_brought_to_the_size_of_the_job_as_diffusers_does(
    fetch: Callable[..., InitImage],
) -> None:
    painting = _painting(1)
    with Gallery({"/a.png": _file(painting)}) as gallery:
        init_image = fetch(image=f"{gallery.url}/a.png", strength=0.5)
    expected = painting.resize((64, 32), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(init_image.pixels, np.asarray(expected))
    assert (init_image.strength, init_image.inpaint_mask) == (0.5, None)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P"])
def test_the_usual_kinds_are_read(fetch: Callable[..., InitImage], kind: str, mode: str) -> None:
    image = _painting(2, mode=mode) if mode != "P" or kind == "PNG" else _painting(2)
    with Gallery({"/a": _file(image, kind)}) as gallery:
        assert fetch(image=f"{gallery.url}/a").pixels.shape == (32, 64, 3)


def test_grey_of_sixteen_bits_is_scaled_and_not_cut_off(fetch: Callable[..., InitImage]) -> None:
    greys = np.linspace(0, 65535, 32 * 64).astype(np.uint16).reshape(32, 64)
    with Gallery({"/a.png": _file(Image.fromarray(greys))}) as gallery:
        pixels = fetch(image=f"{gallery.url}/a.png").pixels
    np.testing.assert_array_equal(pixels, np.stack([greys // 257] * 3, axis=-1))


def test_a_photo_is_turned_as_its_camera_says(fetch: Callable[..., InitImage]) -> None:
    image = _painting(3, (64, 32))
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    with Gallery({"/a": _file(image, exif=exif.tobytes())}) as gallery:
        pixels = fetch(image=f"{gallery.url}/a").pixels
    np.testing.assert_array_equal(pixels, np.asarray(image)[::-1, ::-1])


def test_objects_of_our_own_store_are_read_by_key_and_by_url(
    fetch: Callable[..., InitImage], store: ObjectStore
) -> None:
    stored = store.put("jobs/a/0.png", _file(_painting(4)), "image/png")
    by_key, by_url = fetch(image=stored.key), fetch(image=stored.url)
    assert by_key.digest == by_url.digest
    np.testing.assert_array_equal(by_key.pixels, by_url.pixels)


def test_white_is_painted_and_black_is_kept(
    fetch: Callable[..., InitImage], store: ObjectStore
) -> None:
    store.put("a.png", _file(_painting(5)), "image/png")
    mask = np.zeros((32, 64), np.uint8)
    mask[:, 20:] = 255
    store.put("mask.png", _file(Image.fromarray(mask)), "image/png")
    init_image = fetch(image="a.png", mask_image="mask.png")
    assert init_image.inpaint_mask is not None
    np.testing.assert_array_equal(init_image.inpaint_mask, mask > 0)
    assert init_image.digest != fetch(image="a.png").digest


UNFIT: list[tuple[Any, type[ImagefleetError], str]] = [
    (b"<html>", InvalidInput, "cannot be read as PNG, JPEG, WEBP$"),
    (b"", InvalidInput, "cannot be read"),
    (_file(_painting(6))[:2000], InvalidInput, "cannot be read"),
    (_file(_painting(6), "GIF"), InvalidInput, "cannot be read as PNG, JPEG, WEBP"),
    (_bomb(), InvalidInput, "pixels|exceeds limit"),
    (b"x" * (LARGEST_BYTES + 1), InvalidInput, "at most 20,000,000 bytes"),
    (status(404), InvalidInput, "answers 404"),
    (status(403), InvalidInput, "answers 403"),
    (status(302, location="http://169.254.169.254/"), InvalidInput, "redirects are not followed"),
    (status(503), InputUnavailable, "answers 503"),
    (status(429), InputUnavailable, "answers 429"),
    (broken_off(_file(_painting(6))), InputUnavailable, "stopped in the middle"),
]


@pytest.mark.parametrize(("shown", "error", "said"), UNFIT)
def test_what_cannot_be_used_is_said(
    fetch: Callable[..., InitImage], shown: Any, error: type[ImagefleetError], said: str
) -> None:
    with Gallery({"/a": shown}) as gallery, pytest.raises(error, match=f"^image: .*({said})"):
        fetch(image=f"{gallery.url}/a")


def test_a_server_that_dribbles_holds_nobody_up(fetch: Callable[..., InitImage]) -> None:
    released = threading.Event()
    shown = {"/a": endless(_file(_painting(7))[:100], released)}
    with Gallery(shown) as gallery:
        try:
            with pytest.raises(InputUnavailable, match=r"not there within 1 s|in the middle"):
                fetch(total_s=1.0, image=f"{gallery.url}/a")
        finally:
            released.set()


def test_a_name_server_that_says_nothing_holds_nobody_up(
    fetch: Callable[..., InitImage], monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: released.wait() and [])
    try:
        with pytest.raises(InputUnavailable, match="not there within 1 s"):
            fetch(total_s=1.0, image="http://slow.example/a.png")
    finally:
        released.set()


def test_a_server_that_is_not_there_may_come_back(fetch: Callable[..., InitImage]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(InputUnavailable, match="refused"):
            fetch(image=f"http://127.0.0.1:{nobody.getsockname()[1]}/a")


def test_addresses_inside_the_network_are_refused_as_for_callbacks(store: ObjectStore) -> None:
    originals = InputImages(store, AllowList())
    for host in ("127.0.0.1", "169.254.169.254", "[::1]"):
        request = JobRequest(prompt="a", image=f"http://{host}/a.png")
        with pytest.raises(InvalidInput, match="IMAGEFLEET_CALLBACK_ALLOW"):
            originals.fetch(request, SHAPE)


@pytest.mark.parametrize(
    ("address", "error", "said"),
    [
        ("not/there.png", InvalidInput, "there is no not/there.png"),
        ("file:///etc/passwd", InvalidInput, "or an object of"),
        ("s3://elsewhere/a.png", InvalidInput, "or an object of"),
        ("../secret.png", InvalidInput, "image: must be plain names"),
        ("/etc/passwd", InvalidInput, "image: must be plain names"),
    ],
)
def test_only_our_own_store_is_read(
    fetch: Callable[..., InitImage], address: str, error: type[ImagefleetError], said: str
) -> None:
    with pytest.raises(error, match=said):
        fetch(image=address)


def test_what_is_put_down_while_it_is_fetched_arrives_nowhere(store: ObjectStore) -> None:
    released = threading.Event()
    shown = {"/slow": endless(b"", released), "/quick": _file(_painting(10))}
    with Gallery(shown) as gallery:
        originals = InputImages(store, HERE)
        slow, quick = (
            plan_attempt(name, JobRequest(prompt="a", image=f"{gallery.url}/{name}"), INFO)
            for name in ("slow", "quick")
        )
        originals.start_fetch(slow)
        originals.start_fetch(quick)
        [arrived] = until(originals.pop_ready)
        assert arrived is quick
        assert quick.specs[0].init_image is not None
        assert originals.pop_all() == [slow]
        released.set()
        with pytest.raises(InvalidInput):
            slow.wait_for_images()
        assert originals.pop_ready() == []
        assert originals.pop_all() == []


def test_jobs_with_pictures_go_through_a_worker_and_hold_no_others_up(tmp_path: Path) -> None:
    released = threading.Event()
    shown = {
        "/one.png": _file(_painting(8)),
        "/other.png": _file(_painting(9)),
        "/slow.png": endless(b"\x89PNG", released),
    }
    with Gallery(shown) as gallery, LocalRedisServer(tmp_path / "redis") as server:
        worker = Worker(
            tmp_path,
            {
                "IMAGEFLEET_REDIS_URL": server.url,
                "IMAGEFLEET_STORAGE_URL": (tmp_path / "out").as_uri(),
                "IMAGEFLEET_MODEL": "fake:seconds=0.01",
                "IMAGEFLEET_CALLBACK_ALLOW": "127.0.0.1",
            },
        )
        worker.await_log("ready after")
        client = Client(server.url)
        slow = client.submit("a", image=f"{gallery.url}/slow.png")
        plain = client.submit("a", seed=1)
        one, again, other = (
            client.submit("a", seed=1, image=f"{gallery.url}/{name}.png")
            for name in ("one", "one", "other")
        )
        gone = client.submit("a", image=f"{gallery.url}/gone.png")
        digests = [job.result(timeout=60).images[0].sha256 for job in (plain, one, again, other)]
        assert len(set(digests)) == 4  # the job's id is in the file
        with pytest.raises(JobFailed, match="answers 404") as failed:
            gone.result(timeout=60)
        assert failed.value.failure_code == "invalid_input"
        assert not slow.status().done
        released.set()
        assert worker.terminate() == 0
        pixels = [
            np.asarray(Image.open(tmp_path / "out" / job.status().result.images[0].key))  # type: ignore[union-attr]
            for job in (plain, one, again, other)
        ]
    np.testing.assert_array_equal(pixels[1], pixels[2])
    assert not np.array_equal(pixels[0], pixels[1])
    assert not np.array_equal(pixels[1], pixels[3])

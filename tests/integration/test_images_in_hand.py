"""Jobs start from files, and their images are saved as files: client, Redis, a worker, a folder and
S3."""

import copy
import hashlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image

from imagefleet import Client, ConfigurationError, InvalidInput, InvalidRequest, JobResult
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer
from imagefleet.shared.storage import open_store
from tests.support.processes import ROOT, StartWorker
from tests.support.s3 import signed_s3


@pytest.fixture
def client(
    start: StartWorker, settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of a fleet with a store in S3. It knows only Redis and its own credentials."""
    with signed_s3() as s3:
        environment = s3.credentials.environment()
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        worker = start(**environment, IMAGEFLEET_STORAGE_URL=s3.url("run-1"))
        worker.await_log("ready after")
        with Client(
            settings["IMAGEFLEET_REDIS_URL"], namespace=settings["IMAGEFLEET_NAMESPACE"]
        ) as client:
            yield client


@pytest.fixture
def folder_client(start: StartWorker, settings: dict[str, str]) -> Iterator[Client]:
    """A client of a fleet with a store in a folder."""
    start().await_log("ready after")
    with Client(
        settings["IMAGEFLEET_REDIS_URL"], namespace=settings["IMAGEFLEET_NAMESPACE"]
    ) as client:
        yield client


def _halves(left: str, right: str) -> Image.Image:
    image = Image.new("RGB", (64, 64), left)
    image.paste(Image.new("RGB", (32, 64), right), (32, 0))
    return image


def test_images_of_s3_are_read_saved_and_shared_by_a_client_that_knows_only_redis(
    client: Client, tmp_path: Path
) -> None:
    result = client.submit("a", id="cat-1", num_images_per_prompt=2).result(timeout=900)
    image = result.images[1]
    assert hashlib.sha256(image.read()).hexdigest() == image.sha256
    with image.open() as opened:
        assert opened.size == (64, 64)
        pixels = opened.convert("RGB").tobytes()
    assert hashlib.sha256(pixels).hexdigest() == image.pixel_sha256
    assert [path.name for path in result.save(tmp_path / "new")] == ["cat-1-0.png", "cat-1-1.png"]
    assert (tmp_path / "new" / "cat-1-1.png").read_bytes() == image.read()
    address = urlsplit(image.presigned_url(60))
    assert address.path == "/images/run-1/jobs/cat-1/1.png"
    options = parse_qs(address.query)
    assert options["X-Amz-Expires"] == ["60"]
    assert "X-Amz-Signature" in options  # of version 4: AWS refuses version 2 in new buckets
    for wrong in (0, 604_801, 1.5, True):
        with pytest.raises(InvalidRequest, match=r"expires_s=.* from 1 to 604,800"):
            image.presigned_url(wrong)  # type: ignore[arg-type]
    [status] = client.statuses(["cat-1"])
    assert status.result == JobResult.model_validate_json(result.model_dump_json())


def test_a_job_starts_from_an_image_in_hand_and_keeps_what_the_mask_keeps(
    client: Client, tmp_path: Path
) -> None:
    first = _halves("red", "blue")
    path = tmp_path / "mask.png"
    _halves("black", "white").save(path)
    job = client.submit("a", image=first, mask_image=path, strength=1, metadata={"shot": 3})
    with job.result(timeout=900).images[0].open() as made:
        pixels = np.asarray(made.convert("RGB"))
    np.testing.assert_array_equal(pixels[:, :32], np.asarray(first)[:, :32])
    assert (pixels[:, 32:] != np.asarray(first)[:, 32:]).any()
    store = client.connection.store()
    [document] = [json.loads(store.get(f"jobs/{job.id}/0.json"))]
    assert document["metadata"] == {"shot": 3} == job.status().request.metadata
    key = job.status().request.image
    assert key == f"inputs/{hashlib.sha256(store.get(str(key))).hexdigest()}.png"


def test_images_of_a_folder_are_read_and_have_no_presigned_url(
    folder_client: Client, tmp_path: Path
) -> None:
    [image] = folder_client.submit("a").result(timeout=900).images
    assert pickle.loads(pickle.dumps(image)).read() == copy.deepcopy(image).read() == image.read()
    assert image.save(tmp_path / "a.png").read_bytes() == image.read()
    with pytest.raises(InvalidRequest, match=r"a.jpg'?: the image is a png file; convert it with"):
        image.save(tmp_path / "a.jpg")
    with pytest.raises(ConfigurationError, match="only images in S3"):
        image.presigned_url()
    Path(image.url.removeprefix("file://")).unlink()
    with pytest.raises(InvalidInput, match="any more"):
        image.read()


def test_a_producer_may_reach_the_store_by_an_address_of_its_own(
    folder_client: Client, settings: dict[str, str], tmp_path: Path
) -> None:
    job = folder_client.submit("a", id="cat-1")
    data = job.result(timeout=900).images[0].read()
    (tmp_path / "store").rename(tmp_path / "mounted elsewhere")
    with (
        Client(
            settings["IMAGEFLEET_REDIS_URL"], namespace=settings["IMAGEFLEET_NAMESPACE"]
        ) as client,
        pytest.raises(ConfigurationError, match="this host lacks; mount it"),
    ):
        client.submit("a", image=_png())
    with Client(
        settings["IMAGEFLEET_REDIS_URL"],
        namespace=settings["IMAGEFLEET_NAMESPACE"],
        storage_url=f"file://{tmp_path}/mounted elsewhere",
    ) as client:
        assert client.get("cat-1").result(timeout=900).images[0].read() == data


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(settings: dict[str, str], tmp_path: Path) -> Run:
    names = ("IMAGEFLEET_REDIS_URL", "IMAGEFLEET_NAMESPACE")

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "imagefleet.producer", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT / "src"), **{name: settings[name] for name in names}},
        )

    return run


def test_commands_upload_and_save_images(folder_client: Client, run: Run, tmp_path: Path) -> None:
    (tmp_path / "first.png").write_bytes(_png())
    wish = ["submit", "a", "--id", "cat-1", "--image", "./first.png", "--metadata", '{"shot": 3}']
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(_png())
    for name in ("first.png", "sub/a.png"):
        bare = run("submit", "a", "--image", name)
        assert bare.returncode == 2
        hint = f"'--image': {name} is a file in {tmp_path}; write ./{name} to upload it"
        assert hint in bare.stderr
    done = run(*wish, "--wait", "--out", "images")
    assert (done.returncode, done.stdout) == (0, "cat-1  images/cat-1-0.png\n"), done.stderr
    got = run("get", "cat-1", "--out", "again", "--json")
    assert json.loads(got.stdout) == {"id": "cat-1", "path": "again/cat-1-0.png"}
    saved = [(tmp_path / name / "cat-1-0.png").read_bytes() for name in ("images", "again")]
    assert saved[0] == saved[1]
    waited = json.loads(run("wait", "cat-1", "--json").stdout)
    assert (waited["state"], waited["request"]["metadata"]) == ("succeeded", {"shot": 3})
    missing = run("get", "cat-1", "nobody")
    assert (missing.returncode, missing.stdout) == (1, "cat-1  cat-1-0.png\n")
    assert "no job 'nobody' here" in missing.stderr


def _png() -> bytes:
    buffer = BytesIO()
    _halves("red", "blue").save(buffer, "PNG")
    return buffer.getvalue()


def test_an_uploaded_image_lies_in_the_store_once(folder_client: Client, tmp_path: Path) -> None:
    for _ in range(2):
        folder_client.submit("a", image=_png()).result(timeout=900)
    store = open_store(f"file://{tmp_path}/store")
    assert list(store.list("inputs/")) == [f"inputs/{hashlib.sha256(_png()).hexdigest()}.png"]


def test_an_image_is_uploaded_to_the_store_of_the_model_of_its_job(
    producer: Client, redis_server: LocalRedisServer, namespace: str, tmp_path: Path
) -> None:
    offers = OfferRegistry(connect(redis_server.url), namespace)
    for model in ("retired", "shapes"):  # the offer of a retired model stays
        (tmp_path / model).mkdir()
        offers.announce(_offer(model, f"file://{tmp_path}/{model}/"))
    offers.announce(_offer("hidden", None))
    producer.submit("a", model="shapes", image=_png())
    assert not list(open_store(f"file://{tmp_path}/retired").list())
    assert len(list(open_store(f"file://{tmp_path}/shapes").list())) == 1
    with pytest.raises(ConfigurationError, match=r"model hidden is not .* IMAGEFLEET_STORAGE_URL"):
        producer.submit("a", model="hidden", image=_png())


def _offer(model: str, storage_url: str | None) -> Offer:
    return Offer(
        model=model,
        digest="d",
        shapes=((64, 64),),
        schedulers=("ddim",),
        max_num_inference_steps=10,
        num_inference_steps=5,
        guidance_scale=7,
        scheduler="ddim",
        storage_url=storage_url,
    )

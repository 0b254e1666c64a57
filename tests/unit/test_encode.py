"""Image files keep their pixels, and the metadata that viewers read."""

import hashlib
import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.parameter_types import MAX_PROMPT_CHARACTERS
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.images.encode import FORMATS, encode
from imagefleet.worker.images.metadata import image_metadata, infotext

USER_COMMENT, EXIF_IFD, IMAGE_DESCRIPTION = 0x9286, 0x8769, 0x010E
INFO = ModelInfo(
    name="shapes",
    digest="sha256:0123456789abcdef",
    shapes=(Shape(height=64, width=48),),
    schedulers=("ddim",),
    default_scheduler="ddim",
    default_num_inference_steps=20,
    default_guidance_scale=3.0,
    max_num_inference_steps=100,
)


def _metadata(prompt: str = "a red circle", negative_prompt: str = "") -> dict[str, Any]:
    spec = ImageSpec(
        prompt=prompt,
        negative_prompt=negative_prompt,
        seed=7,
        num_inference_steps=20,
        guidance_scale=3.0,
    )
    return image_metadata(job_id="cat-1", spec=spec, shape=INFO.shapes[0], info=INFO)


def _pixels() -> NDArray[np.uint8]:
    y, x = np.mgrid[0:64, 0:48].astype(np.uint8)
    return np.stack([x * 5, y * 3, x + y], axis=-1)


PIXEL_SHA256 = hashlib.sha256(_pixels().tobytes()).hexdigest()


def _open(data: bytes) -> Image.Image:
    image = Image.open(BytesIO(data))
    image.load()
    return image


def _user_comment(image: Image.Image) -> str:
    comment = image.getexif().get_ifd(EXIF_IFD)[USER_COMMENT]
    assert comment.startswith(b"UNICODE\0")
    return str(comment[8:].decode("utf-16-be"))


def test_png_keeps_every_pixel() -> None:
    encoded = encode(_pixels(), "png", _metadata())
    assert (encoded.content_type, encoded.extension) == ("image/png", "png")
    assert np.array_equal(np.asarray(_open(encoded.data)), _pixels())


@pytest.mark.parametrize("file_format", ["webp", "jpeg"])
def test_the_lossy_formats_stay_close_to_the_pixels(file_format: str) -> None:
    encoded = encode(_pixels(), file_format, _metadata())
    image = _open(encoded.data)
    assert image.format == file_format.upper()
    difference = np.abs(np.asarray(image).astype(int) - _pixels())
    assert difference.mean() < 6


def test_every_format_of_a_request_can_be_written() -> None:
    assert set(FORMATS) == {file_format.value for file_format in ImageFormat}


def test_two_jobs_with_one_image_differ_in_the_file_and_agree_in_the_pixels() -> None:
    one, other = (encode(_pixels(), "png", {**_metadata(), "job_id": job}) for job in "ab")
    assert one.data != other.data
    assert one.pixel_sha256 == other.pixel_sha256
    decoded = _open(one.data).convert("RGB").tobytes()
    assert one.pixel_sha256 == hashlib.sha256(decoded).hexdigest()


def test_the_same_image_gives_the_same_bytes() -> None:
    for file_format in FORMATS:
        assert encode(_pixels(), file_format, _metadata()) == encode(
            _pixels(), file_format, _metadata()
        )


@pytest.mark.parametrize("prompt", ["a red circle", "ein Bär, ein Kreis: rot", "赤い丸 🔴\nzwei"])
def test_png_carries_its_parameters_where_viewers_read_them(prompt: str) -> None:
    metadata = _metadata(prompt, "blurry")
    text = _open(encode(_pixels(), "png", metadata).data).info
    assert text["parameters"] == infotext(metadata)
    assert json.loads(text["imagefleet"]) == metadata | {"pixel_sha256": PIXEL_SHA256}


@pytest.mark.parametrize("prompt", ["a red circle", "ein Bär, ein Kreis: rot", "赤い丸 🔴\nzwei"])
def test_webp_and_jpeg_carry_the_same_metadata(prompt: str) -> None:
    metadata = _metadata(prompt, "blurry")
    webp = _open(encode(_pixels(), "webp", metadata).data)
    jpeg = _open(encode(_pixels(), "jpeg", metadata).data)
    assert _user_comment(webp) == _user_comment(jpeg) == infotext(metadata)
    assert json.loads(webp.getexif()[IMAGE_DESCRIPTION]) == metadata | {
        "pixel_sha256": PIXEL_SHA256
    }
    assert json.loads(jpeg.info["comment"]) == metadata | {"pixel_sha256": PIXEL_SHA256}


@pytest.mark.parametrize("character", ["a", "ä", "\n", '"', "🔴"])
def test_the_longest_prompts_fit_every_format(character: str) -> None:
    longest = character * MAX_PROMPT_CHARACTERS
    metadata = _metadata(longest, longest)
    for file_format in FORMATS:
        assert _open(encode(_pixels(), file_format, metadata).data).size == (48, 64)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((8, 8, 4), np.uint8),
        np.zeros((1, 8, 8, 3), np.uint8),
        np.zeros((8, 8, 3), np.float32),
    ],
)
def test_an_array_that_is_no_image_is_refused(pixels: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="not uint8"):
        encode(pixels, "png", _metadata())


def test_an_unknown_format_is_refused() -> None:
    metadata: Mapping[str, Any] = _metadata()
    with pytest.raises(ValueError, match="none of png, webp, jpeg"):
        encode(_pixels(), "gif", metadata)

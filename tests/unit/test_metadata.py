"""The file of an image holds only what the image depends on; the document beside it holds all."""

import json
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import pytest

from imagefleet.shared.storage import StoredObject
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.images.metadata import image_metadata, infotext, metadata_file

INFO = ModelInfo(
    name="shapes",
    digest="sha256:0123456789abcdef",
    shapes=(Shape(height=64, width=48),),
    schedulers=("ddim",),
    default_scheduler="ddim",
    default_num_inference_steps=20,
    default_guidance_scale=3.0,
    max_num_inference_steps=100,
    versions={"jax": "0.10.2"},
)
SPEC = ImageSpec(
    prompt="a red circle", seed=7, image_index=2, num_inference_steps=20, guidance_scale=3.0
)


def _metadata(**changes: Any) -> dict[str, Any]:
    metadata = image_metadata(job_id="cat-1", spec=SPEC, shape=INFO.shapes[0], info=INFO)
    return metadata | changes


def test_the_metadata_holds_everything_the_image_depends_on() -> None:
    assert _metadata() == {
        "job_id": "cat-1",
        "image_index": 2,
        "prompt": "a red circle",
        "prompt_truncated": False,
        "negative_prompt": "",
        "height": 64,
        "width": 48,
        "num_inference_steps": 20,
        "guidance_scale": 3.0,
        "scheduler": "ddim",
        "seed": 7,
        "nsfw": False,
        "model": "shapes",
        "model_digest": "sha256:0123456789abcdef",
        "versions": {"imagefleet": version("imagefleet"), "jax": "0.10.2"},
    }


def test_the_text_has_the_format_that_viewers_read() -> None:
    assert infotext(_metadata(negative_prompt="blurry")) == (
        "a red circle\n"
        "Negative prompt: blurry\n"
        "Steps: 20, Sampler: DDIM, CFG scale: 3, Seed: 7, Size: 48x64, Model: shapes, "
        f"Model hash: 0123456789, Version: imagefleet {version('imagefleet')}"
    )


def test_an_empty_negative_prompt_gets_no_line() -> None:
    assert infotext(_metadata()).splitlines()[1].startswith("Steps: 20")


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        ("guidance_scale", 7.5, "CFG scale: 7.5,"),
        ("guidance_scale", 0.0, "CFG scale: 0,"),
        ("scheduler", "dpmsolver++", "Sampler: DPM++ 2M,"),
        ("scheduler", "brand_new", "Sampler: brand_new,"),
        ("model", "org/model, v2: fine", 'Model: "org/model, v2: fine",'),
    ],
)
def test_values_are_written_as_viewers_expect(key: str, value: object, written: str) -> None:
    assert written in infotext(_metadata(**{key: value}))


def test_the_metadata_file_adds_the_worker_the_time_and_the_timings() -> None:
    image = StoredObject(key="jobs/cat-1/2.png", url="memory://x", sha256="00", size=3)
    document = json.loads(
        metadata_file(
            _metadata(prompt="ein Bär"),
            image=image,
            pixel_sha256="11",
            own={"shot": 3},
            attempt=2,
            worker="host:1",
            timings={"denoise": 0.5},
            created_at=datetime(2026, 1, 2, tzinfo=UTC),
        )
    )
    assert document == _metadata(prompt="ein Bär") | {
        "pixel_sha256": "11",
        "image": {"key": "jobs/cat-1/2.png", "url": "memory://x", "sha256": "00", "size": 3},
        "metadata": {"shot": 3},
        "attempt": 2,
        "worker": "host:1",
        "timings": {"denoise": 0.5},
        "created_at": "2026-01-02T00:00:00+00:00",
    }

"""The file of an image holds only what the image depends on; the document beside it holds all."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest

from imagefleet.shared.storage import StoredObject
from imagefleet.worker.engine.contract.init_image import InitImage
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


def test_the_metadata_of_an_inpainted_image_name_the_files_it_was_made_from() -> None:
    pixels = np.zeros((64, 48, 3), np.uint8)
    start = InitImage(pixels=pixels, strength=0.5, digest="sha256:0", image_digest="sha256:1")
    inpainted = replace(start, mask_levels=pixels[..., 0], mask_image_digest="sha256:2")
    digests = []
    for init_image in (start, inpainted):
        spec = replace(SPEC, init_image=init_image)
        metadata = image_metadata(job_id="cat-1", spec=spec, shape=INFO.shapes[0], info=INFO)
        digests.append([metadata.get(name) for name in ("image_digest", "mask_image_digest")])
    assert digests == [["sha256:1", None], ["sha256:1", "sha256:2"]]
    assert not {"image_digest", "mask_image_digest"} & _metadata().keys()


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


def test_the_text_has_the_scale_of_the_web_ui_also_of_a_model_that_counts_from_0() -> None:
    flow = replace(INFO, unguided_scale=0.0)
    metadata = image_metadata(job_id="cat-1", spec=SPEC, shape=INFO.shapes[0], info=flow)
    assert (metadata["guidance_scale"], metadata["cfg_scale"]) == (3.0, 4.0)
    assert "CFG scale: 4, " in infotext(metadata)
    assert "cfg_scale" not in _metadata()


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

"""Messages, records, plans and metadata stay byte for byte as earlier releases wrote them.

The code before the table of parameters wrote `tests/fixtures/golden_parameters.json`. Old and new
workers run side by side, so lines may be added to it, but none may change. After you add a case,
run `python -m tests.unit.test_golden_parameters`, and look at the difference.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from imagefleet.shared.bulk.file_layout import plan_key
from imagefleet.shared.bulk.shard_message import shards_to_send
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.message_arguments import pack, unpack
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.contract.control_image import ControlImage
from imagefleet.worker.engine.contract.init_image import InitImage
from imagefleet.worker.engine.contract.unfinished_latents import InputLatents
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.images.metadata import image_metadata, infotext
from imagefleet.worker.jobs.attempt import Attempt, offer_of, plan_attempt
from tests.support.plans import plan_rows
from tests.support.processes import ROOT

FILE: Final = ROOT / "tests" / "fixtures" / "golden_parameters.json"
INFO: Final = replace(
    FakeEngine(job_loras=[LoraOption.parse("style=a")], prompt_chunks=3).info,
    controlnets={"canny": "sha256:4", "depth": "sha256:5"},
)
OFFER: Final = offer_of(INFO)
OFFER_OF_BEFORE: Final = offer_of(
    replace(INFO, limits_guidance=False, true_guidance=False, controlnets={})
)
"""A model without what was added since is announced as before."""
PLAIN: Final = Offer(
    model="plain",
    digest="sha256:1",
    shapes=((64, 64),),
    schedulers=("ddim",),
    max_num_inference_steps=20,
    num_inference_steps=4,
    guidance_scale=7.5,
    scheduler="ddim",
    strength=None,
)
"""Of a model that offers nothing beyond the first release."""
KEY: Final = "inputs/a.png"
PREDICTION: Final = f"https://gw.example/v1/predictions/a#key={'0' * 64}&valid=60"
LATENTS: Final = "jobs/a/0.safetensors"

JOBS: Final[dict[str, dict[str, Any]]] = {
    "a prompt": {},
    "negative_prompt": {"negative_prompt": "people"},
    "negative_prompt, empty": {"negative_prompt": ""},
    "height and width": {"height": 64, "width": 64},
    "num_inference_steps": {"num_inference_steps": 9},
    "guidance_scale": {"guidance_scale": 3},
    "clip_skip": {"clip_skip": 2},
    "guidance_rescale": {"guidance_rescale": 0.7},
    "guidance_rescale, 0": {"guidance_rescale": 0},
    "cfg_normalization": {"cfg_normalization": True},
    "cfg_normalization, 0": {"cfg_normalization": 0},
    "cfg_truncation": {"cfg_truncation": 0.4},
    "cfg_truncation, 1": {"cfg_truncation": 1},
    "true_cfg_scale": {"true_cfg_scale": 4, "negative_prompt": "people"},
    "true_cfg_scale, 1": {"true_cfg_scale": 1},
    "prompt_weighting": {"prompt": "a (blue:1.3) star", "prompt_weighting": True},
    "prompt_weighting, false": {"prompt_weighting": False},
    "num_images_per_prompt, 1": {"num_images_per_prompt": 1},
    "image_index": {"num_images_per_prompt": 4, "image_index": 3},
    "image_index, 0": {"image_index": 0},
    "seed": {"seed": 0},
    "image": {"image": KEY},
    "mask_image": {"image": KEY, "mask_image": KEY},
    "strength": {"image": KEY, "strength": 0.5},
    "image_guidance_scale": {"image": KEY, "image_guidance_scale": 1.5},
    "latents and denoising_start": {"latents": LATENTS, "denoising_start": 0.5},
    "denoising_end": {"denoising_end": 0.5},
    "controlnet": {"controlnet": "canny", "control_image": KEY},
    "controlnet, all": {
        "controlnet": "canny",
        "control_image": KEY,
        "controlnet_conditioning_scale": 0.5,
        "control_guidance_start": 0.1,
        "control_guidance_end": 0.8,
    },
    "controlnet, image": {
        "controlnet": "canny",
        "control_image": KEY,
        "controlnet_conditioning_scale": 0.5,
        "image": KEY,
        "strength": 0.5,
    },
    "controlnet, defaults": {
        "controlnet": "depth",
        "control_image": KEY,
        "controlnet_conditioning_scale": 1,
        "control_guidance_start": 0,
        "control_guidance_end": 1,
    },
    "preview": {"preview": True},
    "scheduler": {"scheduler": "ddim"},
    "loras": {"loras": "style:0.8"},
    "loras, none": {"loras": []},
    "model": {"model": "fake"},
    "format": {"format": "webp"},
    "priority": {"priority": 0},
    "tenant": {"tenant": "gold"},
    "callback_url": {"callback_url": "https://example.org/a"},
    "callback_events": {"callback_events": ["started", "failed"]},
    "ttl": {"ttl": 60},
    "callback_prediction": {"callback_prediction": PREDICTION},
    "keep": {"keep": "30d"},
    "metadata": {"metadata": {"shot": 3}},
    "several": {
        "loras": "style",
        "clip_skip": 1,
        "guidance_rescale": 0.5,
        "prompt_weighting": True,
        "denoising_end": 0.9,
    },
}
"""The parameters of jobs beside a prompt and a seed. A new parameter needs a case here."""

RUNS: Final[dict[str, dict[str, Any]]] = {
    name: JOBS[name]
    for name in (
        *("negative_prompt", "negative_prompt, empty", "num_inference_steps", "guidance_scale"),
        *("clip_skip", "guidance_rescale", "guidance_rescale, 0", "prompt_weighting, false"),
        *("num_images_per_prompt, 1", "image", "mask_image", "strength"),
        *("latents and denoising_start", "scheduler", "loras", "loras, none", "height and width"),
        *("image_index", "image_index, 0"),
        *("cfg_normalization", "cfg_normalization, 0", "cfg_truncation", "cfg_truncation, 1"),
        *("controlnet", "controlnet, all", "controlnet, defaults"),
        *("true_cfg_scale", "true_cfg_scale, 1"),
    )
} | {
    "prompt_weighting": {"prompt_weighting": True},
    "num_images_per_prompt, 2": {"num_images_per_prompt": 2},
    "several": {"loras": "style", "clip_skip": 1, "guidance_rescale": 0.5},
}
"""The parameters of datasets for all rows."""

ROWS: Final[dict[str, dict[str, Any]]] = RUNS | {
    "text cells": {
        "num_inference_steps": "9",
        "guidance_scale": "3.5",
        "clip_skip": "2",
        "guidance_rescale": "0.7",
        "prompt_weighting": "true",
        "num_images_per_prompt": "2",
        "seed": "5",
        "height": "64",
        "width": "64",
        "loras": "style:0.5",
    },
    "whole floats": {"num_inference_steps": 9.0, "clip_skip": 2.0, "seed": 5.0},
    "unset cells": {"clip_skip": "", "guidance_rescale": float("nan"), "loras": None},
}
"""The columns of one row beside its prompt."""

_CANNY: Final = JOBS["controlnet"]
WRONG: Final[dict[str, dict[str, Any]]] = {
    "prompt": {"prompt": " "},
    "height alone": {"height": 64},
    "height of no latents": {"height": 65, "width": 64},
    "height too large": {"height": 4096, "width": 64},
    "num_inference_steps": {"num_inference_steps": 0},
    "num_inference_steps, text": {"num_inference_steps": "9"},
    "guidance_scale": {"guidance_scale": 51},
    "clip_skip": {"clip_skip": 65},
    "guidance_rescale": {"guidance_rescale": 1.1},
    "cfg_normalization": {"cfg_normalization": 51},
    "cfg_truncation": {"cfg_truncation": -0.1},
    "true_cfg_scale": {"true_cfg_scale": 0.9},
    "prompt_weighting": {"prompt_weighting": "yes"},
    "weights": {"prompt": "a (star", "prompt_weighting": True},
    "num_images_per_prompt": {"num_images_per_prompt": 65},
    "image_index": {"num_images_per_prompt": 4, "image_index": 4},
    "image_index alone": {"image_index": 1},
    "seed": {"seed": -1},
    "image": {"image": "a b"},
    "latents": {"latents": "a b", "denoising_start": 0.5},
    "mask_image without image": {"mask_image": KEY},
    "strength without image": {"strength": 0.5},
    "image_guidance_scale without image": {"image_guidance_scale": 1.5},
    "latents alone": {"latents": LATENTS},
    "denoising_start alone": {"denoising_start": 0.5},
    "latents and image": {"latents": LATENTS, "denoising_start": 0.5, "image": KEY},
    "denoising_end": {"latents": LATENTS, "denoising_start": 0.5, "denoising_end": 0.4},
    "denoising_end and mask_image": {"image": KEY, "mask_image": KEY, "denoising_end": 0.4},
    "denoising_end and format": {"denoising_end": 0.5, "format": "webp"},
    "denoising_end, 1": {"denoising_end": 1},
    "controlnet without control_image": {"controlnet": "canny"},
    "control_image without controlnet": {"control_image": KEY},
    "controlnet_conditioning_scale alone": {"controlnet_conditioning_scale": 0.5},
    "controlnet_conditioning_scale": _CANNY | {"controlnet_conditioning_scale": 10.5},
    "control_guidance_start": _CANNY | {"control_guidance_start": 1.5},
    "control_guidance_start, end": _CANNY
    | {"control_guidance_start": 0.5, "control_guidance_end": 0.5},
    "control_guidance_start, 1": _CANNY | {"control_guidance_start": 1},
    "controlnet and image": _CANNY | {"image": KEY},
    "controlnet and image with strength": _CANNY | {"image": KEY, "strength": 0.5},
    "controlnet and mask_image": _CANNY | {"image": KEY, "mask_image": KEY},
    "controlnet and latents": _CANNY | {"latents": LATENTS, "denoising_start": 0.5},
    "preview": {"preview": 1},
    "scheduler": {"scheduler": "a b"},
    "loras": {"loras": "style:11"},
    "model": {"model": "a b"},
    "format": {"format": "gif"},
    "priority": {"priority": 10},
    "tenant": {"tenant": ""},
    "callback_url": {"callback_url": "ftp://a"},
    "callback_events": {"callback_events": ["born"]},
    "callback_prediction": {"callback_prediction": "https://gw.example/v1/predictions/a"},
    "ttl": {"ttl": 0},
    "keep": {"keep": "a day"},
    "metadata": {"metadata": 3},
}
"""What no fleet accepts."""

REFUSED: Final[dict[str, dict[str, Any]]] = {
    name: JOBS[name]
    for name in (
        *("clip_skip", "guidance_rescale", "guidance_rescale, 0", "prompt_weighting", "loras"),
        *("prompt_weighting, false", "mask_image", "strength", "image_guidance_scale", "image"),
        *("latents and denoising_start", "denoising_end", "model", "controlnet"),
        *("cfg_normalization", "cfg_normalization, 0", "cfg_truncation", "cfg_truncation, 1"),
        *("true_cfg_scale", "true_cfg_scale, 1"),
    )
} | {
    "scheduler": {"scheduler": "euler"},
    "shape": {"height": 128, "width": 64},
    "num_inference_steps": {"num_inference_steps": 21},
}
"""What is checked against the offer of a model with the parameters of the first release only."""

PARTS: Final = ("jobs", "runs", "rows", "rows of a run", "wrong", "refused", "offer")


def golden() -> dict[str, Any]:
    """Return what the code of today writes."""
    return {
        "jobs": {name: _job(parameters) for name, parameters in JOBS.items()},
        "runs": {name: _dataset(["one", "two"], parameters) for name, parameters in RUNS.items()},
        "rows": {name: _dataset([cells], {}) for name, cells in ROWS.items()},
        "rows of a run": {name: _dataset([cells], _RUN) for name, cells in ROWS.items()},
        "wrong": {name: _refusal({}, parameters) for name, parameters in WRONG.items()},
        "refused": {name: _refusal(_PLAIN, parameters) for name, parameters in REFUSED.items()},
        "offer": OFFER_OF_BEFORE.model_dump_json(),
    }


_RUN: Final = {
    "clip_skip": 2,
    "guidance_rescale": 0.7,
    "prompt_weighting": True,
    "loras": "style:0.8",
    "num_images_per_prompt": 2,
}
_OFFERS: Final = {DEFAULT_MODEL: OFFER, OFFER.model: OFFER}
_PLAIN: Final = {DEFAULT_MODEL: PLAIN, PLAIN.model: PLAIN}


def _job(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written of a job: its record, its message and the metadata of its images.

    Record and message have all fields here, as earlier releases wrote them. This release leaves out
    what says nothing (`short_fields`).
    """
    request = JobRequest.parse({"prompt": "a star", "seed": 7, **parameters})
    short = pack(request)
    assert unpack(short, "j").model_dump() == request.model_dump()
    message = json.dumps({**short, "request": request.model_dump(mode="json")})
    assert pack(unpack(json.loads(message), "j")) == short
    attempt = plan_attempt("j", request, INFO)
    _start(attempt, request)
    documents = [
        image_metadata(job_id="j", spec=spec, shape=attempt.shape, info=INFO)
        for spec in attempt.specs
    ]
    for document in documents:
        document["versions"] = {"imagefleet": "1"}
    return {
        "record": request.model_dump_json(),
        "message": message,
        "metadata": [json.dumps(document) for document in documents],
        "text": [infotext(document) for document in documents],
    }


def _start(attempt: Attempt, request: JobRequest) -> None:
    """Let an attempt start from what it names, without reading it."""
    if request.image is not None:
        pixels, share = np.zeros((64, 64, 3), np.uint8), request.denoised_share()
        attempt.start_from(InitImage(pixels=pixels, strength=share, digest="sha256:2"))
    if request.control_image is not None:
        pixels = np.zeros((64, 64, 3), np.uint8)
        attempt.start_from(ControlImage(pixels=pixels, digest="sha256:6", image_digest="sha256:7"))
    if request.denoising_start is not None:
        values, start = np.zeros((8, 8, 4), np.float32), request.denoising_start
        attempt.start_from(InputLatents(values=values, denoising_start=start, digest="sha256:3"))


def _dataset(
    rows: list[str] | list[dict[str, Any]], parameters: Mapping[str, Any]
) -> dict[str, Any] | str:
    """Return what is written of a dataset: its plan, its rows and the versions of its messages."""
    store = MemoryStore()
    cells = [row if isinstance(row, str) else {"prompt": "one", **row} for row in rows]
    try:
        plan = plan_rows(cells, store, _OFFERS, **parameters)
    except InvalidRequest as error:
        return str(error)
    return {
        "plan": plan.model_copy(update={"created_at": ""}).dump().decode(),
        "rows": [store.get(plan_key(shard.name)).decode() for shard in plan.shards],
        "versions": [shard.version for shard in shards_to_send(plan, plan.shards)],
    }


def _refusal(offers: dict[str, Offer], parameters: Mapping[str, Any]) -> str:
    try:
        admit(JobRequest.parse({"prompt": "a star", "seed": 7, **parameters}), offers)
    except InvalidRequest as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("part", PARTS)
def test_what_is_written_stays_as_it_was(part: str) -> None:
    expected = json.loads(FILE.read_text())[part]
    found = json.loads(json.dumps(golden()[part]))
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name] == expected[name], name
    assert found == expected


def test_every_parameter_of_a_job_has_a_case() -> None:
    covered = {"prompt"}.union(*JOBS.values())
    assert set(JobRequest.model_fields) <= covered


if __name__ == "__main__":
    FILE.write_text(json.dumps(golden(), indent=1, ensure_ascii=False) + "\n")

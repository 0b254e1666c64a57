"""How a picture came to be, as the JSON document beside it and as the text inside it.

Plain functions of plain values. What is inside the picture depends on the job and the model alone,
so a second attempt makes the same bytes; who made it, when and how fast is only in the document.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Final

from imagefleet.shared.storage import StoredObject
from imagefleet.worker.engine.interface import ImageSpec, ModelInfo, Shape

SAMPLER_NAMES: Final = MappingProxyType(
    {
        "ddim": "DDIM",
        "pndm": "PLMS",
        "euler": "Euler",
        "euler_ancestral": "Euler a",
        "dpmsolver++": "DPM++ 2M",
        "dpmsolver++_karras": "DPM++ 2M Karras",
        "lcm": "LCM",
    }
)
"""Our schedulers under the names that viewers of generated images know."""

_SHORT_HASH: Final = 10
"""Digits of a model's digest that viewers show and compare."""


def picture_metadata(
    *,
    job_id: str,
    spec: ImageSpec,
    shape: Shape,
    info: ModelInfo,
    truncated: bool = False,
    nsfw: bool = False,
) -> dict[str, Any]:
    """What the picture depends on, and nothing else. Keys:

    job_id, image_index; prompt, prompt_truncated (whether the model read only its first 77 tokens),
    negative_prompt, height, width, num_inference_steps,
    guidance_scale, scheduler, seed: as used; strength and original (`sha256:…` of the picture it
    started from, with its mask) if there was one; nsfw (whether the safety checker made it black);
    model, model_digest (`sha256:…`);
    versions (name to version of imagefleet and the engine's libraries).
    """
    return {
        "job_id": job_id,
        "image_index": spec.image_index,
        "prompt": spec.prompt,
        "prompt_truncated": truncated,
        "negative_prompt": spec.negative_prompt,
        "height": shape.height,
        "width": shape.width,
        "num_inference_steps": spec.num_inference_steps,
        "guidance_scale": spec.guidance_scale,
        "scheduler": spec.scheduler,
        "seed": spec.seed,
        **_original(spec),
        "nsfw": nsfw,
        "model": info.name,
        "model_digest": info.digest,
        "versions": {"imagefleet": _own_version(), **info.versions},
    }


def sidecar(
    described: Mapping[str, Any],
    *,
    image: StoredObject,
    attempt: int,
    worker: str,
    timings: Mapping[str, float],
    created_at: datetime,
) -> bytes:
    """The document beside the picture: `described` and, on top of it,

    image (key, url, sha256, size in bytes); attempt (1 is the first); worker; timings (seconds a
    stage); created_at (ISO 8601).
    """
    document = {
        **described,
        "image": {
            "key": image.key,
            "url": image.url,
            "sha256": image.sha256,
            "size": image.size,
        },
        "attempt": attempt,
        "worker": worker,
        "timings": dict(timings),
        "created_at": created_at.isoformat(),
    }
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def infotext(described: Mapping[str, Any]) -> str:
    """The parameters in the form of AUTOMATIC1111's web UI, which most viewers read.

    https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/infotext_utils.py
    """
    settings = {
        "Steps": described["num_inference_steps"],
        "DiffusionPrograms": SAMPLER_NAMES.get(described["scheduler"], described["scheduler"]),
        "CFG scale": f"{described['guidance_scale']:g}",
        "Seed": described["seed"],
        "Size": f"{described['width']}x{described['height']}",
        "Model": described["model"],
        "Model hash": described["model_digest"].removeprefix("sha256:")[:_SHORT_HASH],
        "Version": f"imagefleet {described['versions']['imagefleet']}",
    }
    lines = [described["prompt"]]
    if described["negative_prompt"]:
        lines.append(f"Negative prompt: {described['negative_prompt']}")
    lines.append(", ".join(f"{name}: {_quoted(value)}" for name, value in settings.items()))
    return "\n".join(lines)


def _original(spec: ImageSpec) -> dict[str, Any]:
    if spec.original is None:
        return {}
    return {"strength": spec.original.strength, "original": spec.original.digest}


@cache
def _own_version() -> str:
    return version("imagefleet")


def _quoted(value: object) -> str:
    """Quoted like the web UI does when the value holds one of the format's own separators."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(mark in text for mark in ",:\n") else text

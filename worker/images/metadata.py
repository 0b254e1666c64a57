"""Describe how an image was generated: as a JSON document beside it and as text inside it.

The functions are pure. The metadata inside an image depends on the job and the model alone, so a
second attempt makes the same bytes. Only the document beside it says which worker made it, when
and how fast.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from imagefleet.shared.jobs.cfg_scale import cfg_scale_of
from imagefleet.shared.jobs.foreign_names import SAMPLER_NAMES
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, is_used
from imagefleet.shared.storage import StoredObject
from imagefleet.worker.engine.contract.interface import ImageSpec, ModelInfo, Shape
from imagefleet.worker.engine.contract.sampling import Sampling

_ALWAYS: Final = frozenset(name for name, row in PARAMETERS.items() if row.is_always_recorded)
"""Parameters that all metadata name."""
_IF_USED: Final = tuple(
    field.name
    for field in fields(Sampling)
    if field.name in PARAMETERS and PARAMETERS[field.name].metadata == "if used"
)
"""Parameters that the metadata name only if they are used."""
_SHORT_HASH_DIGITS: Final = 10
"""Hexadecimal digits of the model digest that viewers show and compare."""


def image_metadata(
    *,
    job_id: str,
    spec: ImageSpec,
    shape: Shape,
    info: ModelInfo,
    truncated: bool = False,
    nsfw: bool = False,
) -> dict[str, Any]:
    """Return everything the image depends on, and nothing else. The keys are:

    - job_id, image_index
    - prompt, negative_prompt, height, width, num_inference_steps, guidance_scale, scheduler, seed:
      the values used; a negative prompt that is not given is empty, and an empty one is a blank
    - cfg_scale: the guidance scale as the web UI counts it, only if it is not guidance_scale
    - prompt_truncated: whether the model read only a part of the prompt (by default its first 77
      tokens)
    - num_images_per_prompt: only if it is not 1
    - clip_skip, guidance_rescale, cfg_normalization, cfg_truncation, true_cfg_scale,
      prompt_weighting and all others that have `metadata="if used"` in the table of parameters:
      only if they are used
    - strength, original: only with an init image; `original` is the `sha256:…` of its pixels and
      mask, resized
    - image_digest, mask_image_digest: the `sha256:…` of the files of init image and mask, if there
      are such
    - image_guidance_scale: only of a model that edits images
    - controlnet, controlnet_conditioning_scale, control_guidance_start, control_guidance_end: only
      if they are used
    - controlnet_digest, control_image_digest: only with `controlnet`: the `sha256:…` of the net,
      and of the file of its image
    - denoising_start, original: only of an image that goes on with latents; `original` is the
      `sha256:…` of these
    - denoising_end: only of latents that are passed on
    - nsfw: whether the safety checker blacked the image out
    - model, model_digest (`sha256:…`)
    - model_source: only of a model from the Hub: its id and the commit, `org/name@commit`
    - loras: only of a model with LoRA: name, digest of the file and scale of each
    - textual_inversions: only of a model with such: token and digest of the file of each
    - job_loras: only with LoRA of the job: as `loras`
    - versions: versions of imagefleet and the libraries of the engine, by name
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
        **_cfg_scale(spec, info),
        "scheduler": spec.scheduler,
        "seed": spec.seed,
        **{name: getattr(spec, name) for name in _IF_USED if is_used(name, getattr(spec, name))},
        **_init_image_metadata(spec),
        **_split_metadata(spec),
        **_control_metadata(spec, info),
        "nsfw": nsfw,
        "model": info.name,
        **({"model_source": info.source} if info.source else {}),
        "model_digest": info.digest,
        **({"loras": [asdict(lora) for lora in info.loras]} if info.loras else {}),
        **_inversion_metadata(info),
        **({"job_loras": job_lora_metadata(spec, info)} if spec.loras else {}),
        "versions": {"imagefleet": _imagefleet_version(), **info.versions},
    }


def _cfg_scale(spec: ImageSpec, info: ModelInfo) -> dict[str, float]:
    cfg_scale = cfg_scale_of(spec.guidance_scale, info.unguided_scale)
    return {} if cfg_scale == spec.guidance_scale else {"cfg_scale": cfg_scale}


def recorded_value(spec: ImageSpec, name: str) -> Any:
    """Return what the metadata of an image hold of a field of `Sampling`. None: they lack it."""
    value = getattr(spec, name)
    return value if name in _ALWAYS or is_used(name, value) else None


def job_lora_metadata(spec: ImageSpec, info: ModelInfo) -> list[dict[str, Any]]:
    """Return name, digest and scale of each LoRA that the job of an image chose."""
    digests = info.job_lora_digests
    return [{"name": name, "digest": digests[name], "scale": scale} for name, scale in spec.loras]


def metadata_file(
    metadata: Mapping[str, Any],
    *,
    image: StoredObject,
    pixel_sha256: str | None,
    own: Mapping[str, Any],
    attempt: int,
    worker: str,
    timings: Mapping[str, float],
    created_at: datetime,
) -> bytes:
    """Return the JSON document beside the image. It holds `metadata` and these keys:

    - pixel_sha256: digest of the pixels; latents have none
    - image: key, url, sha256, size in bytes
    - metadata: the caller's `own`, if any; the image file does not hold it
    - attempt: 1 is the first
    - worker
    - timings: seconds per stage
    - created_at: ISO 8601
    """
    document = {
        **metadata,
        **({} if pixel_sha256 is None else {"pixel_sha256": pixel_sha256}),
        "image": {
            "key": image.key,
            "url": image.url,
            "sha256": image.sha256,
            "size": image.size,
        },
        **({"metadata": own} if own else {}),
        "attempt": attempt,
        "worker": worker,
        "timings": dict(timings),
        "created_at": created_at.isoformat(),
    }
    return (json.dumps(document, ensure_ascii=False, indent=2) + "\n").encode()


def infotext(metadata: Mapping[str, Any]) -> str:
    """Return the parameters in the format of AUTOMATIC1111's web UI, which most viewers read.

    Source:
    https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/infotext_utils.py
    """
    settings = {
        "Steps": metadata["num_inference_steps"],
        "Sampler": SAMPLER_NAMES.get(metadata["scheduler"], metadata["scheduler"]),
        "CFG scale": f"{metadata.get('cfg_scale', metadata['guidance_scale']):g}",
        "Seed": metadata["seed"],
        **_batch(metadata),
        "Size": f"{metadata['width']}x{metadata['height']}",
        # The web UI counts the last layer that is used, from 1; diffusers counts those skipped.
        **({"Clip skip": metadata["clip_skip"] + 1} if "clip_skip" in metadata else {}),
        "Model": metadata["model"],
        "Model hash": metadata["model_digest"].removeprefix("sha256:")[:_SHORT_HASH_DIGITS],
        "Version": f"imagefleet {metadata['versions']['imagefleet']}",
    }
    lines = [metadata["prompt"]]
    if metadata["negative_prompt"].strip():
        lines.append(f"Negative prompt: {metadata['negative_prompt']}")
    lines.append(
        ", ".join(f"{name}: {_quote_if_needed(value)}" for name, value in settings.items())
    )
    return "\n".join(lines)


def _batch(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return which of several images it is, counted from 1 as people do."""
    if (images := metadata.get("num_images_per_prompt", 1)) == 1:
        return {}
    return {"Batch": f"image {metadata['image_index'] + 1} of {images}"}


def _init_image_metadata(spec: ImageSpec) -> dict[str, Any]:
    if spec.init_image is None:
        return {}
    metadata: dict[str, Any] = {
        "strength": spec.init_image.strength,
        "original": spec.init_image.digest,
    }
    for name in ("image_digest", "mask_image_digest"):
        if digest := getattr(spec.init_image, name):
            metadata[name] = digest
    if spec.image_guidance_scale is not None:
        metadata["image_guidance_scale"] = spec.image_guidance_scale
    return metadata


def _split_metadata(spec: ImageSpec) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if (latents := spec.input_latents) is not None:
        metadata |= {"denoising_start": latents.denoising_start, "original": latents.digest}
    if spec.denoising_end is not None:
        metadata["denoising_end"] = spec.denoising_end
    return metadata


def _control_metadata(spec: ImageSpec, info: ModelInfo) -> dict[str, Any]:
    if spec.controlnet is None or spec.control_image is None:
        return {}
    return {
        "controlnet_digest": info.controlnets[spec.controlnet],
        "control_image_digest": spec.control_image.image_digest,
    }


def _inversion_metadata(info: ModelInfo) -> dict[str, Any]:
    if not info.textual_inversions:
        return {}
    return {"textual_inversions": [asdict(each) for each in info.textual_inversions]}


@cache
def _imagefleet_version() -> str:
    return version("imagefleet")


def _quote_if_needed(value: object) -> str:
    """Quote a value that contains a separator of the format, as the web UI does."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(mark in text for mark in ",:\n") else text

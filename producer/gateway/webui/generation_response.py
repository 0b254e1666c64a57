"""Write the images of a job as AUTOMATIC1111's API does.

Source: https://github.com/AUTOMATIC1111/stable-diffusion-webui, `Processed.js` in
modules/processing.py.
"""

import base64
import json
import struct
import time
import zlib
from io import BytesIO
from typing import Any

from imagefleet.producer.bulk.a1111 import settings_in
from imagefleet.producer.bulk.image_files import texts_in
from imagefleet.producer.client.job import result_or_raise
from imagefleet.producer.gateway.jobs.images import JobImages
from imagefleet.producer.gateway.web.held_bytes import HeldBytes
from imagefleet.producer.gateway.web.image_json import Base64, bytes_in_base64
from imagefleet.producer.gateway.webui.generation_request import GenerationRequest
from imagefleet.shared.jobs.foreign_names import SAMPLER_NAMES
from imagefleet.shared.jobs.result import JobResult
from imagefleet.shared.jobs.status import JobStatus


async def generation_body(
    images: JobImages, asked: GenerationRequest, status: JobStatus, held: HeldBytes
) -> dict[str, Any]:
    """Return the answer for a job that has ended, for `image_json`: base64, and `info` as a text of
    JSON.

    Raises JobFailed, JobCancelled, InvalidInput, StorageUnavailable, Problem.
    """
    result = result_or_raise(status)
    await held.take_for_answer(bytes_in_base64(result.images))

    def read(file: bytes) -> tuple[str, Base64 | None]:
        return infotext_of(file), Base64(base64.b64encode(file)) if asked.sends_images else None

    pairs = [await images.make(each, read) for each in result.images]
    texts = [text for text, _ in pairs]
    return {
        "images": [file for _, file in pairs if file is not None],
        "parameters": asked.echo,
        "info": json.dumps(_info(status, result, texts), ensure_ascii=False),
    }


def infotext_of(file: bytes) -> str:
    """Return the parameters in an image, as the web UI writes them; '' if there are none."""
    try:
        return texts_in(BytesIO(file)).get("parameters", "")
    except (ValueError, struct.error, zlib.error):  # latents
        return ""


def _info(status: JobStatus, result: JobResult, texts: list[str]) -> dict[str, Any]:
    request, count = status.request, len(result.images)
    used = settings_in(texts[0].rpartition("\n")[2])
    first, sampler = result.images[0], request.scheduler or ""
    return {
        "prompt": request.prompt,
        "all_prompts": [request.prompt] * count,
        "negative_prompt": request.negative_prompt,
        "all_negative_prompts": [request.negative_prompt] * count,
        "seed": first.seed,
        "all_seeds": [each.seed for each in result.images],
        "subseed": first.seed,
        "all_subseeds": [each.seed for each in result.images],
        "subseed_strength": 0,
        "width": first.width,
        "height": first.height,
        "sampler_name": used.get("Sampler", SAMPLER_NAMES.get(sampler, sampler)),
        "cfg_scale": float(used.get("CFG scale", request.guidance_scale or 0)),
        "steps": int(used.get("Steps", request.num_inference_steps or 0)),
        "batch_size": count,
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": result.model,
        "sd_model_hash": result.model_digest.removeprefix("sha256:")[:10],
        "sd_vae_name": None,
        "sd_vae_hash": None,
        "seed_resize_from_w": -1,
        "seed_resize_from_h": -1,
        "denoising_strength": request.strength,
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "infotexts": texts,
        "styles": [],
        "job_timestamp": time.strftime("%Y%m%d%H%M%S", time.gmtime(status.submitted_at)),
        "clip_skip": (request.clip_skip or 0) + 1,
        "is_using_inpainting_conditioning": False,
    }

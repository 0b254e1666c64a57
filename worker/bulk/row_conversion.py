"""Turn rows of a plan into work for the devices, and their pixels into samples. Pure functions."""

import hashlib
from dataclasses import fields
from typing import Any, Final

from imagefleet.shared.bulk.file_layout import sample_key
from imagefleet.shared.bulk.plan import Plan, ShardRow
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.default_strengths import FORMER_STRENGTH
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.text.printable import mask_fetched_url
from imagefleet.worker.bulk.samples import Sample
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.engine.contract.interface import Engine, ImageArray, ModelInfo
from imagefleet.worker.engine.contract.sampling import Sampling
from imagefleet.worker.images.encode import encode, extension_of
from imagefleet.worker.images.inpainting import restore_kept_pixels
from imagefleet.worker.images.metadata import image_metadata, job_lora_metadata, recorded_value
from imagefleet.worker.jobs.attempt import plan_attempt

_COMPARED_FIELDS: Final = tuple(
    field.name for field in fields(Sampling) if field.compare and field.name != "loras"
)
"""Fields of a sample's document that its row decides, beside its LoRA and what it starts from."""
_INPUT_FIELDS: Final = (
    *("init_image", "mask_image", "strength", "latents", "denoising_start", "control_image"),
)


def sample_keys(plan: Plan, row: ShardRow) -> list[str]:
    """Return the keys of the row's samples."""
    return [sample_key(row.row, image) for image in plan.images_of(row)]


def row_work(row: int, request: JobRequest, info: ModelInfo, offers: dict[str, Offer]) -> RowWork:
    """Return the work for a row. Raise ImagefleetError if this model cannot generate it."""
    admit(request, offers)
    attempt = plan_attempt("", request, info)
    return RowWork(shape=attempt.shape, specs=attempt.specs, row=row)


def is_sample_of(sample: Sample, work: RowWork, request: JobRequest, info: ModelInfo) -> bool:
    """Return whether a stored sample is what `work` would generate.

    It may belong to another plan or model.
    """
    document = sample.document
    start = _input_fields(request, info)
    if request.strength is None and document.get("strength") == FORMER_STRENGTH:
        start = start and {**start, "strength": FORMER_STRENGTH}
    return (
        document.get("model_digest") == info.digest
        and all(document.get(name) == start.get(name) for name in _INPUT_FIELDS)
        and any(
            sample.key == sample_key(work.row, spec.image_index)
            and document.get("height") == work.shape.height
            and document.get("width") == work.shape.width
            and sample.extension == extension_of(request.format.value)
            and all(document.get(name) == recorded_value(spec, name) for name in _COMPARED_FIELDS)
            and document.get("controlnet_digest") == info.controlnets.get(spec.controlnet or "")
            and document.get("job_loras", []) == job_lora_metadata(spec, info)
            for spec in work.specs
        )
    )


def encode_samples(
    work: RowWork,
    row: ShardRow,
    request: JobRequest,
    images: list[ImageArray],
    engine: Engine,
) -> list[Sample]:
    """Encode the images of a row. Their documents hold the same metadata as images of jobs."""
    return [_sample(work, row, request, index, image, engine) for index, image in enumerate(images)]


def _sample(
    work: RowWork, row: ShardRow, request: JobRequest, index: int, image: ImageArray, engine: Engine
) -> Sample:
    spec = work.specs[index]
    key = sample_key(row.row, spec.image_index)
    flagged = index in work.flagged
    metadata = image_metadata(
        job_id=key,
        spec=spec,
        shape=work.shape,
        info=engine.info,
        truncated=engine.truncated(spec),
        nsfw=flagged,
    )
    del metadata["job_id"]
    if not flagged:
        image = restore_kept_pixels(image, spec.init_image)
    encoded = encode(image, request.format.value, metadata)
    document = {
        **metadata,
        **_input_fields(request, engine.info),
        "key": key,
        "row": row.row,
        "sha256": hashlib.sha256(encoded.data).hexdigest(),
        "pixel_sha256": encoded.pixel_sha256,
        "extra": row.extra,
    }
    return Sample(key=key, image=encoded.data, extension=encoded.extension, document=document)


def _input_fields(request: JobRequest, info: ModelInfo) -> dict[str, Any]:
    """Return the fields of a sample's document that say what the image started from.

    Datasets are published, so its addresses are without credentials and signatures.
    """
    if request.latents is not None:
        return {
            "latents": mask_fetched_url(request.latents),
            "denoising_start": request.denoising_start,
        }
    fields: dict[str, Any] = {}
    if request.control_image is not None:
        fields["control_image"] = mask_fetched_url(request.control_image)
    if request.image is None:
        return fields
    fields |= {
        "init_image": mask_fetched_url(request.image),
        "strength": request.denoised_share(info.image_use.default_strengths),
    }
    if request.mask_image is not None:
        fields["mask_image"] = mask_fetched_url(request.mask_image)
    return fields


def row_failure(plan: Plan, row: ShardRow, error: ImagefleetError) -> RowFailure:
    samples = len(plan.images_of(row))
    return RowFailure(row=row.row, samples=samples, code=error.code, message=str(error))

"""Turn rows of a plan into work for the devices, and their pixels into samples. Pure functions."""

import hashlib
from typing import Final

from imagefleet.shared.bulk.file_layout import sample_key
from imagefleet.shared.bulk.plan import Plan, ShardPlan, ShardRow
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import ImagefleetError
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.offers import Offer
from imagefleet.worker.bulk.samples import Sample
from imagefleet.worker.devices.row_backlog import RowWork
from imagefleet.worker.engine.interface import Engine, ImageArray, ModelInfo
from imagefleet.worker.images.encode import encode
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.jobs.attempt import plan_attempt

_COMPARED_FIELDS: Final = (
    *("prompt", "negative_prompt", "seed"),
    *("num_inference_steps", "guidance_scale", "scheduler"),
)
"""Fields of a sample's document that its row decides."""


def sample_keys(plan: Plan, row: ShardRow) -> list[str]:
    """Return the keys of the row's samples."""
    return [sample_key(row.row, image) for image in range(plan.images_of(row))]


def row_work(
    plan: Plan,
    shard: ShardPlan,
    row: ShardRow,
    info: ModelInfo,
    offers: dict[str, Offer],
) -> RowWork:
    """Return the work for a row. Raise ImagefleetError if this model cannot generate it."""
    request = plan.request(shard, row)
    admit(request, offers)
    attempt = plan_attempt("", request, info)
    return RowWork(shape=attempt.shape, specs=attempt.specs, row=row.row)


def is_sample_of(sample: Sample, work: RowWork, info: ModelInfo) -> bool:
    """Return whether a stored sample is what `work` would generate.

    It may belong to another plan or model.
    """
    document = sample.document
    return any(
        sample.key == sample_key(work.row, index)
        and document.get("model_digest") == info.digest
        and all(document.get(name) == getattr(spec, name) for name in _COMPARED_FIELDS)
        for index, spec in enumerate(work.specs)
    )


def encode_samples(
    work: RowWork, row: ShardRow, images: list[ImageArray], plan: Plan, engine: Engine
) -> list[Sample]:
    """Encode the images of a row. Their documents hold the same metadata as images of jobs."""
    return [_sample(work, row, index, image, plan, engine) for index, image in enumerate(images)]


def _sample(
    work: RowWork, row: ShardRow, index: int, image: ImageArray, plan: Plan, engine: Engine
) -> Sample:
    key, spec = sample_key(row.row, index), work.specs[index]
    metadata = image_metadata(
        job_id=key,
        spec=spec,
        shape=work.shape,
        info=engine.info,
        truncated=engine.truncated(spec.prompt),
        nsfw=index in work.flagged,
    )
    del metadata["job_id"]
    encoded = encode(image, plan.image_format.value, metadata)
    document = {
        **metadata,
        "key": key,
        "row": row.row,
        "sha256": hashlib.sha256(encoded.data).hexdigest(),
        "pixel_sha256": encoded.pixel_sha256,
        "extra": row.extra,
    }
    return Sample(key=key, image=encoded.data, extension=encoded.extension, document=document)


def row_failure(plan: Plan, row: ShardRow, error: ImagefleetError) -> RowFailure:
    return RowFailure(row=row.row, samples=plan.images_of(row), code=error.code, message=str(error))

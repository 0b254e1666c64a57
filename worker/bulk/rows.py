"""From a row of a plan to its work, and from its pixels to its samples. Plain functions."""

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
"""What a sample's document tells and its row decides."""


def sample_keys(plan: Plan, row: ShardRow) -> list[str]:
    """Of its samples."""
    return [sample_key(row.row, image) for image in range(plan.images_of(row))]


def row_work(
    plan: Plan,
    shard: ShardPlan,
    row: ShardRow,
    info: ModelInfo,
    offers: dict[str, Offer],
) -> RowWork:
    """Raises ImagefleetError if this model cannot paint it."""
    request = plan.request(shard, row)
    admit(request, offers)
    painted = plan_attempt("", request, info)
    return RowWork(shape=painted.shape, specs=painted.specs, row=row.row)


def is_sample_of(sample: Sample, work: RowWork, info: ModelInfo) -> bool:
    """Whether `sample`, found in the destination, is what `work` would make: it may be left of
    another plan or model."""
    found = sample.document
    return any(
        sample.key == sample_key(work.row, index)
        and found.get("model_digest") == info.digest
        and all(found.get(name) == getattr(spec, name) for name in _COMPARED_FIELDS)
        for index, spec in enumerate(work.specs)
    )


def encode_samples(
    work: RowWork, row: ShardRow, pictures: list[ImageArray], plan: Plan, engine: Engine
) -> list[Sample]:
    """Encode. `nsfw` and the like are in the documents as in those of jobs."""
    return [
        _sample(work, row, index, picture, plan, engine) for index, picture in enumerate(pictures)
    ]


def _sample(
    work: RowWork, row: ShardRow, index: int, picture: ImageArray, plan: Plan, engine: Engine
) -> Sample:
    key, spec = sample_key(row.row, index), work.specs[index]
    described = image_metadata(
        job_id=key,
        spec=spec,
        shape=work.shape,
        info=engine.info,
        truncated=engine.truncated(spec.prompt),
        nsfw=index in work.flagged,
    )
    del described["job_id"]
    encoded = encode(picture, plan.image_format.value, described)
    document = {
        **described,
        "key": key,
        "row": row.row,
        "sha256": hashlib.sha256(encoded.data).hexdigest(),
        "extra": row.extra,
    }
    return Sample(key=key, image=encoded.data, extension=encoded.extension, document=document)


def row_failure(plan: Plan, row: ShardRow, error: ImagefleetError) -> RowFailure:
    return RowFailure(row=row.row, samples=plan.images_of(row), code=error.code, message=str(error))

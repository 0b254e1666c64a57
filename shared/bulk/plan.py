"""Define the plan of a dataset. The destination stores it for producers and workers.

Input: rows and parameters. Output: the plan as JSON, the seeds of rows and the id of the run. The
plan lists the rows of each shard by their SHA-256, so the same input and parameters give the same
plan, and any other input gives another. This module depends on neither stores nor Redis nor the
formats of tables.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, ValidationError, create_model

from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.jobs.add_ons import add_ons
from imagefleet.shared.jobs.model import ImageFormat, Model, QueueSafeName
from imagefleet.shared.jobs.parameter_lookups import (
    PARAMETERS,
    ROW_COUNTS,
    ROW_PARAMETERS,
    is_used,
    kind,
    type_of,
)
from imagefleet.shared.jobs.parameter_types import MAX_IMAGES, MAX_SEED
from imagefleet.shared.jobs.request import JobRequest

PLAN_VERSION: Final = 1
NOT_IN_DATASET_DIGEST: Final = frozenset(
    {"created_at", "source", "model_digest", "loras", "controlnets"}
)
"""Fields of a plan in which two plans of the same work may differ."""
_GOLDEN_RATIO: Final = 0x9E3779B9
"""2³² divided by the golden ratio. It is odd, so its multiples reach every 32-bit number once."""


class BulkFormat(StrEnum):
    """The file format of finished shards."""

    WEBDATASET = "webdataset"
    FILES = "files"
    PARQUET = "parquet"


class Source(Model):
    """The input that the rows came from."""

    name: str
    sha256: str | None = None
    """Digest of the file; None for an iterable."""


class ShardPlan(Model):
    """One shard: rows of one image size, in the order of the input."""

    name: str
    rows: int
    samples: int
    sha256: str
    """Digest of the shard's row file."""
    height: int | None = None
    """Pixels; None means the model's native size."""
    width: int | None = None

    @property
    def number(self) -> int:
        return int(self.name)


def _row_field(name: str) -> tuple[Any, None]:
    """Return type and default of a parameter in a plan. Numbers and texts have no limits here: the
    request of a row is checked, so that a row with a wrong one leaves the other rows readable."""
    plain = kind(name)
    return (plain if plain in (int, float, str) else type_of(name)) | None, None


if TYPE_CHECKING:  # type checkers do not know the table

    class _RowFields(Model):
        model_config = ConfigDict(extra="ignore")

        def __getattr__(self, name: str) -> Any: ...

    class _Counts(Model):
        model_config = ConfigDict(extra="ignore", protected_namespaces=())

else:
    _RowFields = create_model(
        "_RowFields", __base__=Model, **{name: _row_field(name) for name in ROW_PARAMETERS}
    )
    _Counts = create_model(
        "_Counts", __base__=Model, **dict.fromkeys(ROW_COUNTS.values(), (int, 0))
    )


class RowParameters(_RowFields):
    """Parameters that a run sets for all rows and that a row may override.

    The fields are those of `ROW_PARAMETERS`. None means that none is set.
    """

    num_images_per_prompt: Annotated[int, Field(ge=1, le=MAX_IMAGES)] | None = None
    image_index: int | None = None


class ShardRow(RowParameters):
    """One line of a shard's row file. None means the value in the plan."""

    row: int
    """Number in the input, from 0."""
    prompt: str
    seed: int
    extra: dict[str, Any] = Field(default_factory=dict)
    """Columns that are not parameters; they are copied into the metadata."""


class Plan(_Counts):
    """The whole dataset as it will be generated.

    It has a field for each of `ROW_COUNTS`: the number of rows that use a parameter. Older releases
    refuse a plan with a field that they do not know, and so never generate such rows without the
    parameter. The fields that are read by name are declared here once more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    version: int = PLAN_VERSION
    format: BulkFormat = BulkFormat.WEBDATASET
    image_format: ImageFormat = ImageFormat.PNG
    shard_size: int
    """Maximum samples per shard. All images of a row are in one shard."""
    parameters: RowParameters = RowParameters()
    seed: int = 0
    """Seed of the run; rows without a seed derive theirs from it."""
    model: QueueSafeName | None = None
    model_digest: str | None = None
    """`sha256:…`; None if no worker had announced it when the plan was made."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Parameter to the input column that holds it, where the names differ."""
    dedupe: bool = False
    input_images: int = 0
    """Rows that start from an image."""
    input_latents: int = 0
    """Rows that go on with latents."""
    weighted_prompts: int = 0
    """Rows with `prompt_weighting`."""
    loras: dict[QueueSafeName, str | None] = Field(default_factory=dict)
    """Digest of each LoRA that a row uses, by name; None if no worker had announced it. Release
    0.1.0 refuses a plan that has this field, too."""
    controlnets: dict[QueueSafeName, str | None] = Field(default_factory=dict)
    """Digest of each ControlNet that a row uses, like `loras`."""
    source: Source
    appended: tuple[int, ...] = ()
    """From each of these row numbers on, rows were appended. They have shards of their own. Release
    0.1.0 refuses a plan that has this field, too."""
    rows: int
    samples: int
    rejected: int = 0
    duplicates: int = 0
    shards: tuple[ShardPlan, ...]
    created_at: str

    @property
    def digest(self) -> str:
        """Return the SHA-256, hexadecimal, of everything but the time of planning."""
        return hashlib.sha256(self._canonical_json(exclude={"created_at"})).hexdigest()

    @property
    def dataset_digest(self) -> str:
        """Return the SHA-256, hexadecimal, of the images and files that the plan describes.

        It does not depend on the time of planning, on the input's name, or on whether the digests
        of the model and of add-ons were known. The rows name their add-ons.
        """
        return hashlib.sha256(self._canonical_json(exclude=set(NOT_IN_DATASET_DIGEST))).hexdigest()

    @property
    def add_ons(self) -> frozenset[str]:
        """Return the LoRA and ControlNets of all rows, as queues name them."""
        return add_ons(self.loras, self.controlnets)

    def is_same_dataset(self, other: "Plan") -> bool:
        """Return whether both plans describe the same images in the same files."""
        return self.dataset_digest == other.dataset_digest

    def dump(self) -> bytes:
        return self._canonical_json(exclude=set()) + b"\n"

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Parse `plan.json`. Raise PlanDamaged if it is not a plan."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise PlanDamaged(f"plan.json cannot be read: {where}: {first['msg']}") from None

    def uses(self, name: str) -> bool:
        """Return whether rows may use a parameter: they are counted, or the run sets it."""
        row = PARAMETERS[name]
        field = row.counted_as or row.listed_as
        counted = field and getattr(self, field)
        return bool(counted) or is_used(name, getattr(self.parameters, name))

    def find_shard(self, name: str) -> ShardPlan:
        """Return the shard of this name. Raise PlanDamaged if the plan has none."""
        for shard in self.shards:
            if shard.name == name:
                return shard
        raise PlanDamaged(f"the plan has no shard {name}")

    def read_rows(self, shard: ShardPlan, data: bytes) -> Iterator[ShardRow]:
        """Yield the rows of `shard` from its row file.

        Raises:
            PlanDamaged: `data` is not the file that was planned.
        """
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise PlanDamaged(f"plan/{shard.name}.jsonl has changed: its SHA-256 is not the plan's")
        for line in data.splitlines():
            try:
                yield ShardRow.model_validate_json(line)
            except ValidationError:
                raise PlanDamaged(f"a row of plan/{shard.name}.jsonl cannot be read") from None

    def request(self, shard: ShardPlan, row: ShardRow) -> JobRequest:
        """Return the parameters of one row as the request of a job."""
        return JobRequest.parse(
            {
                **self.parameters_of(row),
                "model": self.model,
                "format": self.image_format,
                "height": shard.height,
                "width": shard.width,
            }
        )

    def parameters_of(self, row: ShardRow) -> dict[str, Any]:
        """Return the parameters of one row that the row or the run sets."""
        return {
            **self.parameters.model_dump(exclude_none=True),
            **row.model_dump(exclude_none=True, exclude={"row", "extra"}),
        }

    def images_of(self, row: ShardRow) -> range:
        """Return the indices of the images of a row, each of which is a sample."""
        index = self.parameters.image_index if row.image_index is None else row.image_index
        if index is not None:
            return range(index, index + 1)
        return range(row.num_images_per_prompt or self.parameters.num_images_per_prompt or 1)

    def _canonical_json(self, exclude: set[str]) -> bytes:
        return canonical_json(self.model_dump(mode="json", exclude=exclude, exclude_defaults=True))


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """Return one line of JSON, without line end. Equal documents give equal bytes."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def derive_seed(run_seed: int, row: int) -> int:
    """Return the seed of a row that sets none: a hash of `run_seed` and `row`, 32 bits.

    With one `run_seed`, no two of the first 2³² rows share a seed, because every step is
    invertible. The hash is the finalizer of MurmurHash3, https://github.com/aappleby/smhasher
    """
    mixed = (run_seed + row * _GOLDEN_RATIO) & MAX_SEED
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & MAX_SEED
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & MAX_SEED
    return mixed ^ (mixed >> 16)


def run_id(destination: str, plan: Plan) -> str:
    """Return the id of the run that makes `plan` in `destination`, a `place_of` a store.

    Two producers that plan the same dataset at once get the same id, also if a worker announces its
    model's digest in between.
    """
    return hashlib.sha256(f"{destination}\0{plan.dataset_digest}".encode()).hexdigest()[:16]

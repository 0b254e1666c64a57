"""What a dataset is to be: the plan in its destination, which everybody who works on it reads.

The plan is content-addressed. It names every shard's rows by their SHA-256, so that the same input
and parameters make the same plan, and anything else is another one.
Knows no store, no Redis, no input format.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import ConfigDict, Field, ValidationError

from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.jobs.model import MAX_IMAGES, MAX_SEED, ImageFormat, JobRequest, Model, Name

PLAN_VERSION: Final = 1
_GOLDEN: Final = 0x9E3779B9
"""2³² divided by the golden ratio, odd: its multiples meet every 32-bit number once."""


class BulkFormat(StrEnum):
    """How finished shards are kept."""

    WEBDATASET = "webdataset"
    FILES = "files"
    PARQUET = "parquet"


class Source(Model):
    """Where the prompts came from."""

    name: str
    sha256: str | None = None
    """Of the file; None for an iterable."""


class ShardPlan(Model):
    """One shard: rows of one picture size, in the order of the input."""

    name: str
    rows: int
    samples: int
    sha256: str
    """Of its file of rows."""
    height: int | None = None
    """Pixels; None means the model's own size."""
    width: int | None = None

    @property
    def number(self) -> int:
        return int(self.name)


class RowParameters(Model):
    """What a run gives to every row, and a row may choose for itself."""

    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    num_images_per_prompt: Annotated[int, Field(ge=1, le=MAX_IMAGES)] | None = None
    scheduler: Name | None = None


class ShardRow(RowParameters):
    """One line of a shard's file of rows. `None` means what the plan says."""

    row: int
    """In the input, from 0."""
    prompt: str
    seed: int
    extra: dict[str, Any] = Field(default_factory=dict)
    """Columns that are no parameters."""


class Plan(Model):
    """A whole dataset to be made."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    version: int = PLAN_VERSION
    format: BulkFormat = BulkFormat.WEBDATASET
    image_format: ImageFormat = ImageFormat.PNG
    shard_size: int
    """Samples a shard holds at most; a row's pictures are never parted."""
    parameters: RowParameters = RowParameters()
    seed: int = 0
    """Of the run: rows without a seed derive theirs from it."""
    model: Name | None = None
    model_digest: str | None = None
    """`sha256:…`; None if no worker had told it when the plan was made."""
    columns: dict[str, str] = Field(default_factory=dict)
    """Parameter to the input's column that holds it, where the names differ."""
    dedupe: bool = False
    source: Source
    rows: int
    samples: int
    rejected: int = 0
    duplicates: int = 0
    shards: tuple[ShardPlan, ...]
    created_at: str

    @property
    def digest(self) -> str:
        """SHA-256, hexadecimal, of all but the time it was made."""
        return hashlib.sha256(self._canonical(but={"created_at"})).hexdigest()

    @property
    def work(self) -> str:
        """SHA-256 of the pictures and files that are asked for. What may differ: when it was
        planned, the input's name, and whether the model's digest was known by then."""
        but = {"created_at", "source", "model_digest"}
        return hashlib.sha256(self._canonical(but=but)).hexdigest()

    def is_same_work(self, other: "Plan") -> bool:
        """Whether both ask for the same pictures in the same files."""
        return self.work == other.work

    def dump(self) -> bytes:
        return self._canonical(but=set()) + b"\n"

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Raises PlanDamaged."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise PlanDamaged(f"plan.json cannot be read: {where}: {first['msg']}") from None

    def read_rows(self, shard: ShardPlan, data: bytes) -> Iterator[ShardRow]:
        """The rows of `shard` from its file. Raises PlanDamaged if that is not what was planned."""
        if hashlib.sha256(data).hexdigest() != shard.sha256:
            raise PlanDamaged(f"plan/{shard.name}.jsonl is not the file that was planned")
        for line in data.splitlines():
            try:
                yield ShardRow.model_validate_json(line)
            except ValidationError:
                raise PlanDamaged(f"a row of plan/{shard.name}.jsonl cannot be read") from None

    def request(self, shard: ShardPlan, row: ShardRow) -> JobRequest:
        """Everything that is asked for one row, in a job's words."""
        chosen = {
            **self.parameters.model_dump(exclude_none=True),
            **row.model_dump(exclude_none=True, exclude={"row", "extra"}),
        }
        return JobRequest.parse(
            {
                **chosen,
                "model": self.model,
                "format": self.image_format,
                "height": shard.height,
                "width": shard.width,
            }
        )

    def images_of(self, row: ShardRow) -> int:
        """Samples of a row."""
        return row.num_images_per_prompt or self.parameters.num_images_per_prompt or 1

    def _canonical(self, but: set[str]) -> bytes:
        return canonical_json(self.model_dump(mode="json", exclude=but, exclude_defaults=True))


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """One line of JSON that is the same for the same document."""
    text = json.dumps(document, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode()


def derive_seed(run_seed: int, row: int) -> int:
    """The seed of a row that names none: `run_seed` and `row` stirred into 32 bits.

    For one `run_seed` no two of the first 2³² rows share a seed, because every step can be undone.
    The finalizer of MurmurHash3, https://github.com/aappleby/smhasher
    """
    mixed = (run_seed + row * _GOLDEN) & MAX_SEED
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & MAX_SEED
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & MAX_SEED
    return mixed ^ (mixed >> 16)


def run_id(destination: str, plan: Plan) -> str:
    """Of the work on one plan in one place. `destination` is the store's url. Two who plan the same
    at once mean one run, also if a worker tells its model's digest in between."""
    return hashlib.sha256(f"{destination}\0{plan.work}".encode()).hexdigest()[:16]

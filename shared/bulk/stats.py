"""Define the commit marker of a shard and the summary of a run, both files of the destination.

They hold no times and no workers, so a shard that is made again has the same bytes.
"""

from collections import Counter
from collections.abc import Iterable

from imagefleet.shared.bulk.plan import Plan, canonical_json
from imagefleet.shared.jobs.model import Model


class ShardFile(Model):
    """One file of a finished shard."""

    key: str
    sha256: str
    """The digest of the file is hexadecimal."""
    size: int
    """It counts the bytes of the file."""


class RowFailure(Model):
    """A row that could not be generated. None of its samples exists."""

    row: int
    samples: int
    code: str
    """It is the code of an error in `shared.errors`."""
    message: str


class ShardStats(Model):
    """The commit marker of a shard. Once it is stored, the shard is finished."""

    shard: str
    plan_sha256: str
    """It is the digest of the shard's row file."""
    model: str
    model_digest: str
    samples: int
    """Samples that exist, without the failed ones."""
    failures: tuple[RowFailure, ...] = ()
    files: tuple[ShardFile, ...]
    """They are all files with the metadata file, without this one."""

    @property
    def failed(self) -> int:
        """Return the number of samples that could not be generated."""
        return sum(failure.samples for failure in self.failures)

    def reasons(self) -> dict[str, int]:
        """Return the failed samples by error code."""
        counted: Counter[str] = Counter()
        for failure in self.failures:
            counted[failure.code] += failure.samples
        return dict(counted)

    def dump(self) -> bytes:
        return canonical_json(self.model_dump(mode="json")) + b"\n"


class RunStats(Model):
    """The summary of a whole dataset, `stats.json`."""

    work: str
    """It is the `Plan.dataset_digest`."""
    model: str
    model_digest: str
    rows: int
    rejected_rows: int
    duplicate_rows: int
    shards: int
    samples: int
    failed_samples: int
    failures_by_reason: dict[str, int]
    size: int
    """It counts the bytes of the file."""

    @classmethod
    def of(cls, plan: Plan, shards: Iterable[ShardStats]) -> "RunStats":
        """Add up the shards of a run. Raise ValueError if there is none."""
        samples = failed = size = count = 0
        reasons: Counter[str] = Counter()
        last: ShardStats | None = None
        for last in shards:
            count += 1
            samples += last.samples
            failed += last.failed
            size += sum(file.size for file in last.files)
            reasons.update(last.reasons())
        if last is None:
            raise ValueError("a run without shards has no summary")
        return cls(
            work=plan.dataset_digest,
            model=last.model,
            model_digest=last.model_digest,
            rows=plan.rows,
            rejected_rows=plan.rejected,
            duplicate_rows=plan.duplicates,
            shards=count,
            samples=samples,
            failed_samples=failed,
            failures_by_reason=dict(sorted(reasons.items())),
            size=size,
        )

    def dump(self) -> bytes:
        return (self.model_dump_json(indent=2) + "\n").encode()

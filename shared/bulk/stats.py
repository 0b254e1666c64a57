"""What was made: the commit marker of a shard, and the summary of a run.

No times and no workers: a shard made again has the same bytes.
"""

from collections import Counter
from collections.abc import Iterable

from imagefleet.shared.bulk.plan import Plan, canonical_json
from imagefleet.shared.jobs.model import Model


class ShardFile(Model):
    """One file of a finished shard."""

    key: str
    sha256: str
    """hexadecimal"""
    size: int
    """bytes"""


class RowFailure(Model):
    """A row that could not be painted, and all its samples with it."""

    row: int
    samples: int
    code: str
    """Of shared.errors"""
    message: str


class ShardStats(Model):
    """The commit marker: once it stands, the shard is finished."""

    shard: str
    plan_sha256: str
    """Of the shard's file of rows."""
    model: str
    model_digest: str
    samples: int
    """That are there."""
    failures: tuple[RowFailure, ...] = ()
    files: tuple[ShardFile, ...]
    """With the metadata file; not this one."""

    @property
    def failed(self) -> int:
        """Samples that are not there."""
        return sum(failure.samples for failure in self.failures)

    def reasons(self) -> dict[str, int]:
        """Failed samples by the code of their error."""
        counted: Counter[str] = Counter()
        for failure in self.failures:
            counted[failure.code] += failure.samples
        return dict(counted)

    def dump(self) -> bytes:
        return canonical_json(self.model_dump(mode="json")) + b"\n"


class RunStats(Model):
    """`stats.json` of a whole dataset."""

    work: str
    """What was asked for, as SHA-256: `Plan.work`."""
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
    """bytes, of all files of the shards"""

    @classmethod
    def of(cls, plan: Plan, shards: Iterable[ShardStats]) -> "RunStats":
        """Sum up. Raises ValueError if there is no shard."""
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
            raise ValueError("a run has at least one shard")
        return cls(
            work=plan.work,
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

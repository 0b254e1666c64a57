"""Define the verification of a run: how far it is, and what it has found."""

from enum import StrEnum

from pydantic import ConfigDict

from imagefleet.shared.jobs.model import Count, Model, Time


class VerificationState(StrEnum):
    """A verification is in one of these states."""

    QUEUED = "queued"  # a gateway will begin with it
    RUNNING = "running"  # files are read
    REPAIRING = "repairing"  # workers make the damaged shards again; then all is read once more
    DONE = "done"
    FAILED = "failed"  # `error` says why


ENDED = (VerificationState.DONE, VerificationState.FAILED)


class FoundProblem(Model):
    """The dataset differs from its plan; see `producer.bulk.verify.Problem`."""

    model_config = ConfigDict(extra="ignore")
    shard: str
    what: str
    detail: str
    samples: int = 0


class Verification(Model):
    """A verification has this record, which is a part of that of its run."""

    model_config = ConfigDict(extra="ignore")
    id: str
    """It tells the verifications of one run apart."""
    state: VerificationState
    repair: bool = False
    """Whether damaged shards are made again."""
    requested_at: Time
    ended_at: Time | None = None
    tries: Count = 0
    """So often a gateway began to read files."""
    shards: Count = 0
    checked: Count = 0
    """It counts the shards that were read."""
    planned: Count = 0
    """It counts images, as `present` and `failed` do."""
    present: Count = 0
    failed: Count = 0
    problem_count: Count = 0
    problems: tuple[FoundProblem, ...] = ()
    """It has the first of them."""
    sent_again: Count = 0
    """It counts the shards that were repaired."""
    error: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more comes of it."""
        return self.state in ENDED

    @property
    def is_clean(self) -> bool | None:
        """Return whether the dataset is as planned; None if that is not known."""
        return not self.problem_count if self.state is VerificationState.DONE else None

"""Parse the records of runs and shards that Redis stores. This module does not use Redis."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from imagefleet.shared.jobs.model import Model, State

NO_RECORD: Final = "none"
"""State that the scripts use for a shard without a record."""


@dataclass(frozen=True, kw_only=True)
class ShardRecord:
    """The stored record of a shard. `done` and `failed` count samples, `tries` attempts."""

    shard: int
    state: State
    attempt: str
    worker: str
    done: int
    failed: int
    tries: int


@dataclass(frozen=True, kw_only=True)
class ShardTransition:
    """The result of a requested state change of a shard."""

    happened: bool
    before: State | None
    """State of the shard before; None: it had no record."""
    run_state: State | None
    """State of the run afterwards; None: there is no record of the run."""


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """The data from which the record of a run is created."""

    id: str
    destination: str
    plan_digest: str
    model: str | None
    shards: int
    samples: int
    max_failures: int | None
    priority: int

    @property
    def constant_fields(self) -> dict[str, str]:
        """Return the fields of the record that never change."""
        return {
            "destination": self.destination,
            "plan_digest": self.plan_digest,
            "model": self.model or "",
            "shards": str(self.shards),
            "samples": str(self.samples),
        }


class RunStatus(Model):
    """The status of a run. Times are Unix seconds of the Redis server's clock."""

    id: str
    destination: str
    plan_digest: str
    state: State
    model: str | None
    shards: int
    samples: int
    """Images that the plan asks for."""
    images: int
    """It counts the samples generated so far, with those of unfinished shards. The number falls
    when a worker dies, because samples without a checkpoint are generated again."""
    failed_images: int
    """Samples that could not be generated."""
    shards_by_state: dict[State, int]
    failures_by_reason: dict[str, int]
    """It counts those samples by the code of their error."""
    images_by_worker: dict[str, int]
    """Samples that each worker generated since the run was started or resumed. Lost samples count
    here."""
    max_failures: int | None
    """The run stops at this many failed samples. None: never."""
    priority: int
    started_at: float
    resumed_at: float | None = None
    """When the run was last started again after it had ended. None: never."""
    finished_at: float | None

    @property
    def done(self) -> bool:
        return self.state is not State.RUNNING

    @property
    def as_new_run(self) -> NewRun:
        """Return the data from which the record was created."""
        return NewRun(**{each.name: getattr(self, each.name) for each in fields(NewRun)})


def parse_transition(answer: Any) -> ShardTransition:
    happened, before, run_state = answer
    return ShardTransition(
        happened=bool(happened),
        before=None if before == NO_RECORD else State(before),
        run_state=State(run_state) if run_state else None,
    )


def parse_shard_record(shard: str, text: str) -> ShardRecord:
    state, attempt, worker, done, failed, tries = text.split("|")
    return ShardRecord(
        shard=int(shard),
        state=State(state),
        attempt=attempt,
        worker=worker,
        done=int(done),
        failed=int(failed),
        tries=int(tries),
    )


def parse_run_status(
    run: str,
    record: Mapping[str, str],
    by_worker: Mapping[str, str],
    by_shard: Mapping[str, str],
) -> RunStatus:
    reasons: dict[str, int] = {}
    for text in by_shard.values():
        for code, samples in json.loads(text).items():
            reasons[code] = reasons.get(code, 0) + samples
    return RunStatus(
        id=run,
        destination=record["destination"],
        plan_digest=record["plan_digest"],
        state=State(record["state"]),
        model=record["model"] or None,
        shards=int(record["shards"]),
        samples=int(record["samples"]),
        images=int(record.get("images", 0)),
        failed_images=int(record.get("failed_images", 0)),
        shards_by_state={state: int(record.get(f"shards:{state}", 0)) for state in State},
        failures_by_reason=reasons,
        images_by_worker={worker: int(samples) for worker, samples in by_worker.items()},
        max_failures=int(record["max_failures"]) if record["max_failures"] else None,
        priority=int(record["priority"]),
        started_at=float(record["started_at"]),
        resumed_at=float(record["resumed_at"]) if "resumed_at" in record else None,
        finished_at=float(record["finished_at"]) if "finished_at" in record else None,
    )

"""Parse the records of runs and shards that Redis stores. This module does not use Redis."""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from imagefleet.shared.bulk.run_events import RunReceiver
from imagefleet.shared.bulk.shard_errors import ShardError, errors_by_code
from imagefleet.shared.errors import UnreadableRecord
from imagefleet.shared.jobs.model import Count, Model, State, Time
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

NO_RECORD: Final = "none"
"""State that the scripts use for a shard without a record."""
_Sum = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Scripts change this count by differences. It may be negative after Redis lost a record."""
_COUNTS: Final = TypeAdapter(dict[str, Count])
_SHARD_RECORD: Final = re.compile(
    r"([a-z]+)\|([^|]*)\|([^|]*)\|([0-9]{1,15})\|([0-9]{1,15})\|([0-9]{1,15})"
)
"""`transition.lua` accepts the same."""
_MAX_REASON: Final = 200


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
    receiver: RunReceiver | None = None
    """If it is None, the run keeps the receiver that it has."""

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
    shards: Count
    samples: Count
    """Images that the plan asks for."""
    images: _Sum
    """It counts the samples generated so far, with those of unfinished shards. The number falls
    when a worker dies, because samples without a checkpoint are generated again."""
    failed_images: _Sum
    """Samples that could not be generated."""
    shards_by_state: dict[State, _Sum]
    failures_by_reason: dict[str, Count]
    """It counts those samples by the code of their error."""
    errors: tuple[ShardError, ...] = ()
    """It lists the errors of whole shards, one for each code, the latest first."""
    images_by_worker: dict[str, Count]
    """Samples that each worker generated since the run was started or resumed. Lost samples count
    here."""
    max_failures: Count | None
    """The run stops at this many failed samples. None: never."""
    priority: Count
    started_at: Time
    resumed_at: Time | None = None
    """When the run was last started again after it had ended. None: never."""
    finished_at: Time | None

    @property
    def done(self) -> bool:
        return self.state is not State.RUNNING

    @property
    def as_new_run(self) -> NewRun:
        """Return the data from which the record was created."""
        names = [each.name for each in fields(NewRun) if each.name in type(self).model_fields]
        return NewRun(**{name: getattr(self, name) for name in names})


def parse_transition(answer: Any) -> ShardTransition:
    happened, before, run_state = answer
    return ShardTransition(
        happened=bool(happened), before=_state_or_none(before), run_state=_state_or_none(run_state)
    )


def parse_shard_record(shard: str, text: str) -> ShardRecord | None:
    """Return the record of a shard; None if it is damaged. The scripts take it for no record."""
    fields = _SHARD_RECORD.fullmatch(text)
    if fields is None or fields[1] not in tuple(State) or not re.fullmatch("[0-9]{1,9}", shard):
        return None
    return ShardRecord(
        shard=int(shard),
        state=State(fields[1]),
        attempt=fields[2],
        worker=fields[3],
        done=int(fields[4]),
        failed=int(fields[5]),
        tries=int(fields[6]),
    )


def parse_shard_records(run: str, texts: Mapping[str, str]) -> Iterator[ShardRecord]:
    """Yield the records of the shards of a run, without those that are damaged."""
    for shard, text in texts.items():
        record = parse_shard_record(shard, text)
        if record is None:
            name = printable(shard, 20)
            log.warning("the record of shard %s of run %s is damaged and ignored", name, run)
        else:
            yield record


def parse_run_status(
    run: str,
    record: Mapping[str, str],
    by_worker: Mapping[str, str],
    reasons: Mapping[str, str],
    errors: Mapping[str, str],
) -> RunStatus:
    """Return the status in the record of a run. Ignore damaged counts of workers and of failures,
    and damaged errors.

    Raises:
        UnreadableRecord: a field of the record itself is missing or damaged.
    """
    optional = ("resumed_at", "finished_at")
    try:
        return RunStatus.model_validate(
            {
                "id": run,
                **{name: record[name] for name in ("destination", "plan_digest", "state")},
                **{name: record[name] for name in ("shards", "samples", "priority", "started_at")},
                **{name: record[name] or None for name in ("model", "max_failures")},
                **{name: record.get(name, 0) for name in ("images", "failed_images")},
                **{name: record.get(name) for name in optional},
                "shards_by_state": {each: record.get(f"shards:{each}", 0) for each in State},
                "failures_by_reason": _sum_reasons(reasons.values()),
                "errors": errors_by_code(errors.values()),
                "images_by_worker": dict(_readable_counts(by_worker)),
            }
        )
    except KeyError as error:
        reason = f"the field {error} is missing"
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise unreadable_run(run, reason)


def unreadable_run(run: str, reason: str) -> UnreadableRecord:
    """Return the error for the record of a run that cannot be read."""
    return UnreadableRecord(
        f"the record of run {printable(run, 80)!r} cannot be read "
        f"({printable(reason, _MAX_REASON)}); "
        "it is damaged, or a newer release of imagefleet has written it"
    )


def _state_or_none(text: str) -> State | None:
    return State(text) if text in tuple(State) else None


def _sum_reasons(texts: Iterable[str]) -> dict[str, int]:
    """Return the failed samples of all shards by error code, without damaged counts."""
    reasons: dict[str, int] = {}
    for text in texts:
        try:
            counts = _COUNTS.validate_json(text)
        except ValidationError:
            continue
        for code, samples in counts.items():
            reasons[code] = reasons.get(code, 0) + samples
    return reasons


def _readable_counts(texts: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for name, text in texts.items():
        if re.fullmatch("[0-9]{1,15}", text):
            yield name, int(text)

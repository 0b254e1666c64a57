"""Check a plan against the one that its destination holds already, and join them if one grows.

Input: two plans. Output: an error that says in what they differ, or the plan of both.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.producer.bulk.plan_comparison import PlanComparison, end_of_rows
from imagefleet.shared.bulk.plan import NOT_IN_DATASET_DIGEST, Plan
from imagefleet.shared.bulk.summary import read_summary
from imagefleet.shared.errors import PlanConflict
from imagefleet.shared.jobs.parameter_lookups import ROW_COUNTS
from imagefleet.shared.storage import ObjectStore

_OF_ROWS: Final = frozenset(
    {"rows", "samples", "rejected", "duplicates", "shards", "appended", *ROW_COUNTS.values()}
)
"""Fields of a plan that follow from its rows."""
_ADVICE: Final = (
    "use another destination, or give the same input and parameters to continue this one"
)


def seams_of(existing: Plan | None, store: ObjectStore, *, appends: bool) -> tuple[int, ...]:
    """Return the row numbers at which shards of a plan end: where rows were appended before, and
    where they are appended now.

    Raises:
        PlanDamaged: a row file of the existing plan is missing or changed.
    """
    if existing is None:
        return ()
    return (*existing.appended, end_of_rows(existing, store)) if appends else existing.appended


def check_no_other_dataset(new: Plan, store: ObjectStore) -> None:
    """Raise PlanConflict if the store holds a finished dataset whose plan was removed, and is not
    `new`. Its shards would count as finished, because their rows may be the same."""
    stats = read_summary(store)
    if stats is not None and stats.work != new.dataset_digest:
        raise PlanConflict(
            f"{store.url} holds a finished dataset of another plan, which was removed; use another "
            "destination, or give the same input and parameters"
        )


def check_same_options(existing: Plan, spec: DatasetSpec, store: ObjectStore) -> None:
    """Raise PlanConflict if rows with these options cannot be appended to a plan."""
    defaults = spec.defaults
    given: dict[str, Any] = {
        "format": spec.format,
        "image_format": spec.image_format,
        "shard_size": defaults.shard_size,
        "parameters": defaults.parameters,
        "seed": defaults.seed,
        "model": defaults.model,
        "columns": dict(defaults.columns),
        "dedupe": spec.dedupe,
    }
    if fields := [name for name, value in given.items() if getattr(existing, name) != value]:
        raise _conflict(store, fields)


def grown(existing: Plan, new: Plan, store: ObjectStore, comparison: PlanComparison | None) -> Plan:
    """Return the plan of a dataset to which rows were appended.

    Raises:
        PlanConflict: its model, LoRA or ControlNets differ, or its first shards are not those of
            `existing`.
    """
    if new.shards[: len(existing.shards)] != existing.shards:
        raise _conflict(store, ["shards"], comparison)
    _check_same_models(existing, new, store)
    return new.model_copy(
        update={
            "model_digest": existing.model_digest or new.model_digest,
            "loras": {**new.loras, **_known(existing.loras)},
            "controlnets": {**new.controlnets, **_known(existing.controlnets)},
        }
    )


def check_same_work(
    existing: Plan, new: Plan, store: ObjectStore, comparison: PlanComparison | None = None
) -> None:
    """Raise PlanConflict if the stored plan is not `new`, or if their model or add-ons differ.

    Args:
        comparison: of their rows; the error names the first one that differs.
    """
    if not existing.is_same_dataset(new):
        fields = [
            name
            for name in Plan.model_fields
            if name not in NOT_IN_DATASET_DIGEST and getattr(existing, name) != getattr(new, name)
        ]
        raise _conflict(store, fields, comparison)
    _check_same_models(existing, new, store)


def _conflict(
    store: ObjectStore, fields: Iterable[str], comparison: PlanComparison | None = None
) -> PlanConflict:
    listed = list(fields)
    sentences = [f"{store.url} holds another plan: {', '.join(listed)} differ"]
    if comparison is not None and _OF_ROWS.issuperset(listed):
        sentences += _about_rows(comparison)
    return PlanConflict("; ".join([*sentences, _ADVICE]))


def _about_rows(comparison: PlanComparison) -> Iterator[str]:
    """Yield which row differs, or how rows behind those that are planned get into the dataset."""
    if comparison.first is not None:
        yield comparison.first.sentence
    elif comparison.has_more:
        yield "the planned rows are the same, and --append (in Python append=True) adds the others"


def _check_same_models(existing: Plan, new: Plan, store: ObjectStore) -> None:
    if existing.model_digest and new.model_digest and existing.model_digest != new.model_digest:
        raise PlanConflict(
            f"{store.url} was planned for model {existing.model_digest}, but the fleet has "
            f"{new.model_digest} now; one model must generate the whole dataset"
        )
    for kind, before, after in (
        ("LoRA", existing.loras, new.loras),
        ("ControlNet", existing.controlnets, new.controlnets),
    ):
        for name, planned in before.items():
            now = after.get(name)
            if planned and now and planned != now:
                raise PlanConflict(
                    f"{store.url} was planned for {kind} {name}={planned}, but the fleet has {now} "
                    "now; one file must be used for the whole dataset"
                )


def _known(digests: Mapping[str, str | None]) -> dict[str, str]:
    """Return the digests that were known when a plan was made."""
    return {name: digest for name, digest in digests.items() if digest is not None}

"""Sum up a finished dataset: `stats.json`, and the card that the Hub reads.

Goes in: a destination where every shard has its commit marker. The same shards give the same bytes.
The card's header: https://huggingface.co/docs/hub/datasets-cards
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.file_layout import CARD, RUN_STATS
from imagefleet.shared.bulk.plan import BulkFormat, Plan
from imagefleet.shared.bulk.stats import RunStats
from imagefleet.shared.storage import ObjectStore

_SIZES: Final = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
)
_DATA_FILES: Final = {
    BulkFormat.WEBDATASET: '"[0-9]*.tar"',
    BulkFormat.PARQUET: '"[0-9]*.parquet"',
    BulkFormat.FILES: '"[0-9]*/*"',
}


def write_summary(store: ObjectStore, plan: Plan) -> RunStats:
    """Write both files. Raises KeyError if a shard is not finished."""
    found = [stats for _, stats in finished_shards(store, plan.shards)]
    if len(found) < len(plan.shards):
        raise KeyError(f"{len(plan.shards) - len(found)} shards are not finished")
    stats = RunStats.of(plan, found)
    store.put(CARD, render_card(plan, stats).encode(), "text/markdown; charset=utf-8")
    store.put(RUN_STATS, stats.dump(), "application/json")
    return stats


def write_missing_summary(store: ObjectStore, plan: Plan) -> None:
    """The same for a run that is complete, if whoever ended it did not live to. Nothing where files
    were removed since."""
    with suppress(KeyError, ValueError):
        if RunStats.model_validate_json(store.get(RUN_STATS)).work == plan.work:
            return
    with suppress(KeyError):
        write_summary(store, plan)


def render_card(plan: Plan, stats: RunStats) -> str:
    """The README.md of the dataset."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _facts(plan, stats))
    return f"""---
pretty_name: Generated pictures of {stats.rows} prompts
task_categories:
- text-to-image
tags:
- synthetic
- {plan.format}
size_categories:
- {_size_category(stats.samples)}
configs:
- config_name: default
  data_files:
  - split: train
    path: {_DATA_FILES[plan.format]}
---

# Generated pictures of {stats.rows} prompts

Every picture was made from a prompt by a text-to-image model. None was taken by a camera, and none
was looked at by a person.

| | |
|---|---|
{rows}

Every sample carries the parameters it was made with: the same model with the same parameters and
seed makes it again. `plan/` holds every row as it was asked for, `NNNNN.stats.json` the SHA-256 of
each shard's files and the rows that failed. Made with imagefleet.
"""


def _facts(plan: Plan, stats: RunStats) -> Iterator[tuple[str, object]]:
    yield "Pictures", stats.samples
    yield "Prompts", stats.rows
    yield "Shards", f"{stats.shards} of at most {plan.shard_size} pictures, as {plan.format}"
    yield "Picture format", plan.image_format.value
    yield "Model", stats.model
    yield "Model digest", f"`{stats.model_digest}`"
    for name, value in plan.parameters.model_dump(exclude_none=True).items():
        yield f"`{name}`", value
    yield "Seed of the run", plan.seed
    yield "Rows rejected", f"{stats.rejected_rows} (`plan/rejected.jsonl`)"
    if plan.dedupe:
        yield "Rows left out as duplicates", stats.duplicate_rows
    yield "Pictures that failed", stats.failed_samples
    for reason, samples in stats.failures_by_reason.items():
        yield f"Failed: `{reason}`", samples
    yield "Size", f"{stats.size} bytes"
    yield "Plan", f"`{stats.work}`"


def _size_category(samples: int) -> str:
    return next((name for limit, name in _SIZES if samples < limit), "n>100M")

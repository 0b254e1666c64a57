"""Write the summary of a finished dataset: `stats.json`, and the card that the Hub reads.

A destination where every shard has its commit marker goes in; the two files come out. Equal shards
give equal bytes. The header of the card: https://huggingface.co/docs/hub/datasets-cards
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.file_layout import CARD, EXTENSION, FOLDER_METADATA, RUN_STATS
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
    BulkFormat.WEBDATASET: ("[0-9]*.tar",),
    BulkFormat.PARQUET: ("[0-9]*.parquet",),
    BulkFormat.FILES: ("[0-9]*/*.{extension}", f"[0-9]*/{FOLDER_METADATA}"),
}
"""Files of the card's `train` split. In a folder, `datasets` chooses its reader by the extensions,
so the text files beside the images are left out."""


def write_summary(store: ObjectStore, plan: Plan) -> RunStats:
    """Write `stats.json` and the card. Raise KeyError if a shard is not finished."""
    markers = [stats for _, stats in finished_shards(store, plan.shards)]
    if len(markers) < len(plan.shards):
        raise KeyError(f"{len(plan.shards) - len(markers)} shards are not finished")
    stats = RunStats.of(plan, markers)
    store.put(CARD, render_card(plan, stats).encode(), "text/markdown; charset=utf-8")
    store.put(RUN_STATS, stats.dump(), "application/json")
    return stats


def write_missing_summary(store: ObjectStore, plan: Plan) -> None:
    """Write the summary of a complete run if it is missing, because the last worker died.

    Do nothing if files of the dataset were removed meanwhile.
    """
    with suppress(KeyError, ValueError):
        if RunStats.model_validate_json(store.get(RUN_STATS)).work == plan.work_digest:
            return
    with suppress(KeyError):
        write_summary(store, plan)


def render_card(plan: Plan, stats: RunStats) -> str:
    """Return the dataset card, `README.md`."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _facts(plan, stats))
    return f"""---
pretty_name: Images generated from {stats.rows} prompts
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
    path:
{_data_files(plan)}
---

# Images generated from {stats.rows} prompts

A text-to-image model generated every image from a prompt. No image is a photograph, and nobody has
reviewed them.

| | |
|---|---|
{rows}

The metadata of every sample holds its parameters. The same model with the same parameters and seed
generates the same image again. `plan/` holds the parameters of every row. `NNNNN.stats.json` holds
the SHA-256 of each shard's files and the rows that failed. Made with imagefleet.
"""


def _data_files(plan: Plan) -> str:
    extension = EXTENSION[plan.image_format]
    patterns = (pattern.format(extension=extension) for pattern in _DATA_FILES[plan.format])
    return "\n".join(f'    - "{pattern}"' for pattern in patterns)


def _facts(plan: Plan, stats: RunStats) -> Iterator[tuple[str, object]]:
    yield "Images", stats.samples
    yield "Prompts", stats.rows
    yield "Shards", f"{stats.shards} of at most {plan.shard_size} images, as {plan.format}"
    yield "Image format", plan.image_format.value
    yield "Model", stats.model
    yield "Model digest", f"`{stats.model_digest}`"
    for name, value in plan.parameters.model_dump(exclude_none=True).items():
        yield f"`{name}`", value
    yield "Seed of the run", plan.seed
    listed = " (`plan/rejected.jsonl`)" if stats.rejected_rows else ""
    yield "Rejected rows", f"{stats.rejected_rows}{listed}"
    if plan.dedupe:
        yield "Duplicate rows, left out", stats.duplicate_rows
    yield "Failed images", stats.failed_samples
    for reason, samples in stats.failures_by_reason.items():
        yield f"Failed with `{reason}`", samples
    yield "Size", f"{stats.size} bytes"
    yield "Plan", f"`{stats.work}`"


def _size_category(samples: int) -> str:
    return next((name for limit, name in _SIZES if samples < limit), "n>100M")

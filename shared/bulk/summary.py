"""Write the summary of a finished dataset: `stats.json`, and the card that the Hub reads, with a
contact sheet.

Input: a destination where every shard has its commit marker. Output: the files. Equal shards give
equal statistics. The card depends on the writer too: only one with Pillow, and pyarrow for Parquet,
draws the sheet. The header of the card: https://huggingface.co/docs/hub/datasets-cards
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from imagefleet.shared.bulk.commit_markers import finished_shards
from imagefleet.shared.bulk.contact_sheet import contact_sheet
from imagefleet.shared.bulk.file_layout import (
    CARD,
    CONTACT_SHEET,
    EXTENSION,
    FOLDER_METADATA,
    MAX_TEXT_BYTES,
    RUN_STATS,
)
from imagefleet.shared.bulk.first_samples import first_samples
from imagefleet.shared.bulk.plan import BulkFormat, Plan
from imagefleet.shared.bulk.reading_guide import reading_guide
from imagefleet.shared.bulk.sample_features import features_yaml
from imagefleet.shared.bulk.stats import RunStats, ShardStats
from imagefleet.shared.errors import InvalidRequest, StorageUnavailable
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.text.printable import counted, mask_fetched_url

log = logging.getLogger(__name__)

_SHEET_SHARDS: Final = 4
_SHEET_IMAGES: Final = 16
_SHEET: Final = f"""
![the first images of some shards, with their prompts]({CONTACT_SHEET})
"""
_ADDRESSES: Final = INPUT_FIELDS
"""Parameters that may hold credentials, which a card must not publish."""
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
"""The card's `train` split has these files. In a folder, `datasets` chooses its reader by the
extensions, so the text files beside the images are left out."""


Licenses = Mapping[str, str | None]
"""By the digests of models, it has their licences. None: nobody says it."""
NO_LICENSES: Final[Licenses] = MappingProxyType({})


def write_summary(store: ObjectStore, plan: Plan, licenses: Licenses = NO_LICENSES) -> RunStats:
    """Write `stats.json`, the card and its contact sheet. Raise KeyError if a shard is not
    finished."""
    markers = [stats for _, stats in finished_shards(store, plan, plan.shards)]
    if len(markers) < len(plan.shards):
        raise KeyError(f"{len(plan.shards) - len(markers)} shards are not finished")
    stats = RunStats.of(plan, markers)
    sheet = _contact_sheet(store, plan, markers)
    if sheet is not None:
        store.put(CONTACT_SHEET, sheet, "image/png")
    is_webdataset = plan.format is BulkFormat.WEBDATASET
    features = features_yaml(store, plan, markers) if is_webdataset else None
    license_name = licenses.get(stats.model_digest)
    card = render_card(
        plan, stats, has_sheet=sheet is not None, features=features, license_name=license_name
    )
    store.put(CARD, card.encode(), "text/markdown; charset=utf-8")
    store.put(RUN_STATS, stats.dump(), "application/json")
    return stats


def read_summary(store: ObjectStore) -> RunStats | None:
    """Return the summary of a complete run. None: there is none, or it cannot be read."""
    with suppress(KeyError, ValueError, InvalidRequest):
        return RunStats.model_validate_json(store.get(RUN_STATS, MAX_TEXT_BYTES))
    return None


def write_missing_summary(store: ObjectStore, plan: Plan, licenses: Licenses = NO_LICENSES) -> None:
    """Write the summary of a complete run if it is missing, because the last worker died.

    Do nothing if files of the dataset were removed meanwhile.
    """
    stats = read_summary(store)
    if stats is not None and stats.work == plan.dataset_digest:
        return
    with suppress(KeyError):
        write_summary(store, plan, licenses)


def _contact_sheet(store: ObjectStore, plan: Plan, markers: Sequence[ShardStats]) -> bytes | None:
    """Return a sheet of the first images of shards at equal distances.

    None if there is no image, if this process lacks Pillow or pyarrow, or if a file cannot be read:
    the dataset is complete without a contact sheet.

    Raises:
        StorageUnavailable: the store cannot be reached now.
    """
    made = [stats for stats in markers if stats.samples]
    chosen = [made[at * len(made) // _SHEET_SHARDS] for at in range(_SHEET_SHARDS)] if made else []
    shards = list({stats.shard: stats for stats in chosen}.values())
    images: list[tuple[bytes, str]] = []
    try:
        for stats in shards:
            images += first_samples(store, plan, stats, -(-_SHEET_IMAGES // len(shards)))
        return contact_sheet(images[:_SHEET_IMAGES]) if images else None
    except ImportError as error:
        log.warning(
            "the dataset gets no contact sheet: it needs %s; %s",
            error.name,
            how_to_install("dataset"),
        )
    except StorageUnavailable:
        raise
    except Exception as error:  # of a damaged file, by tarfile, Pillow, pyarrow or the store
        log.warning("the dataset gets no contact sheet: %s: %s", type(error).__name__, error)
    return None


def render_card(
    plan: Plan,
    stats: RunStats,
    *,
    has_sheet: bool = False,
    features: str | None = None,
    license_name: str | None = None,
) -> str:
    """Return the dataset card, `README.md`. `license_name` is that of the model, if it is known."""
    info = "" if features is None else f"dataset_info:\n  features:\n{features}\n"
    rows = "\n".join(f"| {name} | {value} |" for name, value in _facts(plan, stats, license_name))
    inputs = list(_inputs(plan))
    *names, last = ("parameters", "seed", *(name for name, _ in inputs))
    return f"""---
pretty_name: Images generated from {counted(stats.rows, "prompt")}
task_categories:
- {"image-to-image" if plan.input_images else "text-to-image"}
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
{info}---

# Images generated from {counted(stats.rows, "prompt")}

A text-to-image model generated every image from a prompt{"".join(use for _, use in inputs)}.
No image is a photograph, and nobody has reviewed them.
{_SHEET if has_sheet else ""}
| | |
|---|---|
{rows}

{reading_guide(plan)}

## How it was made

The metadata of every sample holds its parameters. The same model with the same
{", ".join(names)} and {last} generates the same image again.
`plan/` holds the parameters of every row. `NNNNN.stats.json` holds the SHA-256 of each shard's
files and the rows that failed. Made with imagefleet.
"""


def _inputs(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what rows start from beside their prompts, and how the card says it."""
    if plan.input_images:
        yield "init image", ", those with `init_image` in their metadata also from that image"
    if plan.input_latents:
        yield "latents", ", those with `latents` in their metadata also from these latents"


def _data_files(plan: Plan) -> str:
    extension = EXTENSION[plan.image_format]
    patterns = (pattern.format(extension=extension) for pattern in _DATA_FILES[plan.format])
    return "\n".join(f'    - "{pattern}"' for pattern in patterns)


def _facts(plan: Plan, stats: RunStats, license_name: str | None) -> Iterator[tuple[str, object]]:
    yield "Images", stats.samples
    yield "Prompts", stats.rows
    if plan.input_images:
        yield "Prompts with an image to start from", plan.input_images
    if plan.input_latents:
        yield "Prompts with latents to go on with", plan.input_latents
    yield (
        "Shards",
        f"{stats.shards:,} of at most {counted(plan.shard_size, 'image')}, as {plan.format}",
    )
    yield "Image format", plan.image_format.value
    yield "Model", stats.model
    yield "Model digest", f"`{stats.model_digest}`"
    if license_name is not None:
        yield "Licence of the model", f"`{license_name}`"
    for name, value in plan.parameters.model_dump(exclude_none=True).items():
        yield f"`{name}`", _shown(name, value)
    for kind, digests in (("LoRA", plan.loras), ("ControlNet", plan.controlnets)):
        for name, digest in digests.items():
            yield f"{kind} `{name}`", f"`{digest}`" if digest else "named in the metadata"
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


def _shown(name: str, value: Any) -> object:
    """Return the value of a parameter as the card shows it."""
    if name == "loras":
        return ", ".join(f"{lora}:{scale:g}" for lora, scale in value)
    return mask_fetched_url(value) if name in _ADDRESSES else value


def _size_category(samples: int) -> str:
    return next((name for limit, name in _SIZES if samples < limit), "n>100M")

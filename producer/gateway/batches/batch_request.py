"""Check what a caller orders as a batch of OpenAI's or as a run of our own, and write the order."""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.receivers import CallbackAddress
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.shard_sender import DEFAULT_PRIORITY
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.batch_lines import ENDPOINTS
from imagefleet.producer.gateway.batches.run_order import RunOrder
from imagefleet.producer.gateway.batches.uploads import keep_seconds
from imagefleet.producer.gateway.jobs.caller_images import CallerImages
from imagefleet.producer.gateway.problems import Problem, wrong_field
from imagefleet.shared.jobs.parameter_lookups import ROW_PARAMETERS
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS

_WINDOW: Final = re.compile(r"([1-9][0-9]{0,2})h")
_MAX_METADATA: Final = 16
_MAX_NAME: Final = 64
_MAX_VALUE: Final = 512
_LOWEST_PRIORITY: Final = 9
READING: Final = ("input_format", "delimiter", "encoding")
"""Options that say how the input of a run is read."""
OPTIONS: Final = frozenset(
    {
        *("format", "image_format", "shard_size", "seed", "columns", "ignore_columns", "dedupe"),
        *("alternatives", "limit", "max_rejected", "height", "width", "model"),
        *READING,
        *ROW_PARAMETERS,
    }
)
"""A run takes these options. `wildcards` is none: it names a folder of the gateway's host."""


class _Order(BaseModel):
    """Both orders may have these fields."""

    metadata: dict[str, str] | None = Field(
        default=None, description="Up to 16 texts of your own, which are shown with it."
    )
    priority: int | None = Field(
        default=None,
        ge=0,
        le=_LOWEST_PRIORITY,
        description="0 is the highest; at least that of the key. By default 3.",
    )


class BatchRequest(_Order):
    """A request for a batch has these fields."""

    input_file_id: str
    endpoint: str = Field(json_schema_extra={"enum": list(ENDPOINTS)})
    completion_window: str = Field(
        default="24h", description="Hours after which it expires, as in 24h; at most 999h."
    )
    output_expires_after: dict[str, Any] | None = Field(
        default=None, description='As in {"anchor": "created_at", "seconds": 3600}.'
    )


class RunRequest(_Order):
    """A request for a run has these fields. Others are options of a dataset."""

    model_config = ConfigDict(extra="allow")
    rows: list[str | dict[str, Any]] | None = Field(
        default=None, min_length=1, description="Prompts, or objects of columns."
    )
    input_file_id: str | None = Field(default=None, description="A file, in the place of `rows`.")
    callback_url: str | None = Field(
        default=None,
        description="An http(s) address. It receives a signed webhook when the run starts, at each "
        "tenth of its images, when it stalls, and at its end.",
    )


def batch_order(asked: BatchRequest, caller: Caller, order_id: str, max_keep_s: int) -> RunOrder:
    """Return the order of a batch. Raises Problem."""
    if asked.endpoint not in ENDPOINTS:
        raise wrong_field("endpoint", asked.endpoint, f"must be one of {', '.join(ENDPOINTS)}")
    window = _WINDOW.fullmatch(asked.completion_window)
    if window is None:
        limit = "must be hours, from 1h to 999h, as in 24h"
        raise wrong_field("completion_window", asked.completion_window, limit)
    seconds = (asked.output_expires_after or {}).get("seconds")
    return RunOrder(
        **_common(asked, caller, order_id),
        input_file_id=asked.input_file_id,
        endpoint=asked.endpoint,
        window_s=int(window[1]) * 3_600,
        keep_s=keep_seconds("output_expires_after", seconds, max_keep_s),
    )


def run_order(
    asked: RunRequest, caller: Caller, order_id: str, input_file_id: str, options: dict[str, Any]
) -> RunOrder:
    """Return the order of a run of our own. Raises Problem, InvalidRequest."""
    CallbackAddress.parse(asked.callback_url, None)
    return RunOrder(
        **_common(asked, caller, order_id),
        input_file_id=input_file_id,
        options=options,
        callback_url=asked.callback_url,
    )


def checked_options(
    asked: RunRequest, caller: Caller, inputs: CallerImages, aliases: Mapping[str, str]
) -> dict[str, Any]:
    """Return the options of a run, as `plan_run` takes them. Raises Problem, InvalidRequest."""
    options = dict(asked.model_extra or {})
    for name in sorted(options.keys() - OPTIONS):
        limit = f"is no option of a run; the options are {', '.join(sorted(OPTIONS))}"
        raise wrong_field(name, options[name], limit)
    if isinstance(model := options.get("model"), str):
        options["model"] = aliases.get(model, model)
    checked = {name: value for name, value in options.items() if name not in READING}
    for name in INPUT_FIELDS:
        if isinstance(text := checked.get(name), str):
            checked[name] = inputs.resolve_text(caller, name, text)
    try:
        parse_spec(RowImages(read_files=False), **checked)
    except (TypeError, AttributeError):
        raise wrong_field("options", options, "have values of wrong types") from None
    return options


def _common(asked: _Order, caller: Caller, order_id: str) -> dict[str, Any]:
    metadata = asked.metadata or {}
    too_long = any(len(k) > _MAX_NAME or len(v) > _MAX_VALUE for k, v in metadata.items())
    if len(metadata) > _MAX_METADATA or too_long:
        limit = f"must have at most {_MAX_METADATA} names of {_MAX_NAME} and texts of {_MAX_VALUE}"
        raise wrong_field("metadata", f"{len(metadata)} names", f"{limit} characters")
    if asked.priority is not None and asked.priority < caller.max_priority:
        limit = f"must be at least {caller.max_priority} for {caller}"
        message = f"priority={asked.priority}: {limit}"
        raise Problem(403, "priority_not_allowed", message, field="priority")
    return {
        "id": order_id,
        "tenant": caller.tenant,
        "key_id": caller.key_id,
        "images_per_day": caller.images_per_day,
        "max_priority": caller.max_priority,
        "priority": asked.priority
        if asked.priority is not None
        else max(DEFAULT_PRIORITY, caller.max_priority),
        "metadata": metadata,
        "created_at": time.time(),
    }

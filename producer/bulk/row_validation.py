"""Validate one row of an input and plan it, or reject it with a reason.

Input: a row as it was read. Output: its line in a shard's row file, the number of its images and
their size. Most rows are only a prompt; they are checked without building a `JobRequest`, in 1 µs
each.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from imagefleet.producer.bulk.column_names import (
    MAX_COLUMNS,
    check_copied_column,
    note_unused_word,
    parameter_by_column,
)
from imagefleet.producer.bulk.copied_columns import RowRejected, to_json_value
from imagefleet.producer.bulk.row_cells import converted, is_missing
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.rows import RejectedRow, Row
from imagefleet.producer.connection.input_images import NOT_YET_UPLOADED
from imagefleet.shared.bulk.plan import RowParameters, ShardRow, canonical_json, derive_seed
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.arguments import plain_value
from imagefleet.shared.jobs.lora_scales import LoraScales
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.parameter_lookups import (
    PARAMETERS,
    ROW_COUNTS,
    ROW_PARAMETERS,
    has_neutral_value,
    is_used,
)
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS, MAX_IMAGES, MAX_PROMPT_CHARACTERS
from imagefleet.shared.jobs.prompt_text import is_blank
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import JobRequest

log = logging.getLogger(__name__)

Size = tuple[int | None, int | None]
"""Height and width in pixels; None means the model's native size."""

MAX_EXTRA_BYTES: Final = 65_536
_COMPARED_FIELDS: Final = (*ROW_PARAMETERS, "height", "width")
"""Fields in which duplicate rows agree, besides prompt and seed."""
_NEEDED: Final = {name: row.needs for name, row in PARAMETERS.items() if row.needs}
"""Parameters, and what each needs."""
_LEFT_OUT: Final = tuple(
    name for name in ROW_PARAMETERS if PARAMETERS[name].since > 1 and has_neutral_value(name)
)
"""Parameters that a row does not repeat from its run: workers of release 0.1.0 know no such field,
even one that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class RowDefaults:
    """Values that a run sets for all its rows."""

    parameters: RowParameters
    size: Size
    model: str | None
    seed: int
    shard_size: int | None
    """None: `ShardSizing` chooses it."""
    columns: Mapping[str, str]
    """Parameter to the input column that holds it."""
    ignored_columns: frozenset[str] = frozenset()
    """Columns that are neither read nor copied."""

    @property
    def max_images(self) -> int:
        """Return how many images a row may have: all of them are in one shard."""
        return MAX_IMAGES if self.shard_size is None else self.shard_size


class PlannedRow(NamedTuple):
    """A valid row."""

    line: str
    """The row's JSON in the row file."""
    duplicate_key: str
    """Equal for rows that give the same images; only the prompt if the row sets nothing else."""
    images: int
    size: Size
    counted: tuple[str, ...]
    """The fields of a plan that count this row; see `ROW_COUNTS`."""
    steps: int
    """Denoising steps of each image; 0 if they are the model's and the model is not known."""
    loras: LoraScales
    controlnet: str | None


class RowPlanner:
    """Validates the rows of one run."""

    def __init__(self, defaults: RowDefaults, offers: dict[str, Offer], images: RowImages) -> None:
        """Check the values for all rows. Raise InvalidRequest if one is wrong."""
        self._row_images = images
        self._defaults = defaults
        self._offers = offers
        self._common: dict[str, Any] = {
            **defaults.parameters.model_dump(exclude_none=True),
            "height": defaults.size[0],
            "width": defaults.size[1],
            "model": defaults.model,
            "seed": defaults.seed,
        }
        missing = [
            needed
            for name, needed in _NEEDED.items()
            if name in self._common and needed not in self._common
        ]
        stand_in = dict.fromkeys(missing[:1], NOT_YET_UPLOADED)  # each row must bring its own
        common = JobRequest.parse({"prompt": "any", **self._common, **stand_in})
        admit(common, offers, images_come_later=True)
        self._takes_plain_texts = not common.prompt_weighting and self._prompt_suffices()
        self._images = len(common.images)
        self._common_steps = self._steps(common)
        self._common_loras, self._common_net = common.loras, common.controlnet
        self._common_counted = _counted(common)
        self._common_values = {name: getattr(common, name) for name in _COMPARED_FIELDS}
        if self._images > defaults.max_images:
            limit = f"must be at least {self._images}, the number of images of one row"
            raise InvalidRequest("shard_size", defaults.shard_size, limit)
        self._prompt = defaults.columns.get("prompt", "prompt")
        self._parameter_of = parameter_by_column(defaults.columns)
        self._accepted_columns: set[str] = set()
        self._unseen_columns = {
            column: name for name, column in defaults.columns.items() if name != "prompt"
        }
        """Columns that no row had so far. The prompt's is not here: a row without it is
        rejected."""

    def check_columns(self) -> None:
        """Raise InvalidRequest if a parameter's column was in no row. Call it after the last
        row."""
        for column, name in self._unseen_columns.items():
            raise InvalidRequest("column", f"{name}={column}", "no row has such a column")

    def plan_row(self, number: int, row: Row, folder: Path | None) -> PlannedRow | RejectedRow:
        """Plan or reject row `number` of the input. See `TableSource.folder`.

        Raises:
            InvalidRequest: a column looks like a mistyped parameter, so all rows may be wrong.
            ConfigurationError, StorageDenied, StorageUnavailable: an image cannot be uploaded.
        """
        if type(row) is dict and len(row) == 1 and isinstance(row.get(self._prompt), str):
            row = cast(str, row[self._prompt])
        if isinstance(row, str):
            if (
                self._takes_plain_texts
                and 0 < len(row) <= MAX_PROMPT_CHARACTERS
                and row.isprintable()
                and not is_blank(row)
            ):
                seed = derive_seed(self._defaults.seed, number)
                line = f'{{"prompt":{encode_basestring(row)},"row":{number},"seed":{seed}}}'
                return PlannedRow(
                    line=line,
                    duplicate_key=row,
                    images=self._images,
                    size=self._defaults.size,
                    counted=self._common_counted,
                    steps=self._common_steps,
                    loras=self._common_loras,
                    controlnet=self._common_net,
                )
            row = {self._prompt: row}
        if isinstance(row, RejectedRow):
            return row
        try:
            return self._plan_row(number, row, folder)
        except RowRejected as error:
            return error.rejected

    def _plan_row(self, number: int, row: Mapping[str, Any], folder: Path | None) -> PlannedRow:
        parameters, extra = self._split_columns(row)
        if parameters.get("model", self._defaults.model) != self._defaults.model:
            raise RowRejected("model", parameters["model"], "a run uses one model for all rows")
        request = self._request(parameters, folder)
        images = len(request.images)
        if images > self._defaults.max_images:
            limit = f"must be at most the shard size, {self._defaults.max_images}"
            raise RowRejected("num_images_per_prompt", images, limit)
        fields = {
            name: getattr(request, name) for name in parameters if name in ShardRow.model_fields
        }
        size = (request.height, request.width)
        duplicate_key = self._duplicate_key(request, parameters.get("seed") is not None)
        fields.setdefault("seed", derive_seed(self._defaults.seed, number))
        fields["row"] = number
        for name in _LEFT_OUT:
            if name in fields and fields[name] == self._common_values[name]:
                del fields[name]
        if extra:
            fields["extra"] = extra
        return PlannedRow(
            line=canonical_json(fields).decode(),
            duplicate_key=duplicate_key,
            images=images,
            size=size,
            counted=_counted(request),
            steps=self._steps(request),
            loras=request.loras,
            controlnet=request.controlnet,
        )

    def _request(self, parameters: Mapping[str, Any], folder: Path | None) -> JobRequest:
        """Return what a row asks for. Upload its inputs only if everything else is valid."""
        inputs = {field: parameters[field] for field in INPUT_FIELDS if field in parameters}
        stand_ins = dict.fromkeys(inputs, NOT_YET_UPLOADED)
        try:
            request = JobRequest.parse({**self._common, **parameters, **stand_ins})
            admit(request, self._offers)
            if not inputs:
                return request
            addresses = {
                field: self._row_images.address(field, given, folder)
                for field, given in inputs.items()
            }
            return JobRequest.parse({**self._common, **parameters, **addresses})
        except InvalidRequest as error:
            raise RowRejected(error.field, error.value, error.limit) from None

    def _prompt_suffices(self) -> bool:
        """Return whether a row needs no more than a prompt, and so no image of its own."""
        with suppress(InvalidRequest):
            admit(JobRequest.parse({"prompt": "any", **self._common}), self._offers)
            return True
        return False

    def _steps(self, request: JobRequest) -> int:
        offer = self._offers.get(request.model or DEFAULT_MODEL)
        if offer is None:
            return request.denoised_steps(request.num_inference_steps or 0)
        steps = request.num_inference_steps or offer.num_inference_steps
        return request.denoised_steps(steps, offer.default_strengths)

    def _duplicate_key(self, request: JobRequest, seeded: bool) -> str:
        """Return a key of all parameters, with the run's values and without copied columns."""
        values = {name: getattr(request, name) for name in _COMPARED_FIELDS}
        if not seeded and values == self._common_values:
            return request.prompt
        if seeded:
            values["seed"] = request.seed
        return "\0" + canonical_json({**values, "prompt": request.prompt}).decode()

    def _split_columns(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of a row, and its columns that are only copied."""
        parameters: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for column in self._unseen_columns.keys() & row.keys():
            del self._unseen_columns[column]
        for column, value in row.items():
            if column in self._defaults.ignored_columns:
                continue
            if (name := self._parameter_of.get(column)) is None:
                if column not in self._accepted_columns:
                    self._accept_column(column, row)
                extra[column] = to_json_value(column, value)
                continue
            value = plain_value(value)
            if not is_missing(value) or (name == "prompt" and value == ""):
                parameters[name] = converted(name, value)
        if "prompt" not in parameters:
            raise RowRejected(self._prompt, None, "is missing")
        if extra and len(canonical_json(extra)) > MAX_EXTRA_BYTES:
            raise _too_large(extra)
        return parameters, extra

    def _accept_column(self, column: str, row: Mapping[str, Any]) -> None:
        """Check a column that is copied and that no row had before this one."""
        if len(self._accepted_columns) >= MAX_COLUMNS:
            limit = f"is one column too many; all rows together copy at most {MAX_COLUMNS:,}"
            raise RowRejected("column", column, limit)
        check_copied_column(column)
        if note := note_unused_word(column, self._parameter_of, row):
            log.warning("%s", note)
        self._accepted_columns.add(column)


def _too_large(extra: Mapping[str, Any]) -> RowRejected:
    """Return the error for columns that are too large to be copied. It names the largest."""
    sizes = {column: len(canonical_json(value)) for column, value in extra.items()}
    largest = max(sizes, key=lambda column: sizes[column])
    limit = f"copied columns must have at most {MAX_EXTRA_BYTES:,} bytes together, as JSON"
    return RowRejected(largest, extra[largest], f"{limit}; this one has {sizes[largest]:,}")


def _counted(request: JobRequest) -> tuple[str, ...]:
    """Return the fields of a plan that count a row with this request."""
    used = (name for name in ROW_COUNTS if is_used(name, getattr(request, name)))
    return tuple(ROW_COUNTS[name] for name in used)

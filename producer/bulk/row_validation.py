"""Validate one row of an input and plan it, or reject it with a reason.

A row as it was read goes in. Its line in a shard's row file, the number of its images and their
size come out. Most rows are only a prompt; they are checked without building a `JobRequest`, in
1 µs each.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from imagefleet.producer.bulk.copied_columns import RowRejected, escape_surrogates, to_json_value
from imagefleet.producer.bulk.readers import RejectedRow, Row
from imagefleet.producer.bulk.row_cells import converted, is_missing
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.input_images import IMAGE_FIELDS, NOT_YET_UPLOADED
from imagefleet.shared.bulk.plan import RowParameters, ShardRow, canonical_json, derive_seed
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.lora_scales import LoraScales
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.prompt_text import is_blank
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.request import MAX_PROMPT_CHARACTERS, JobRequest

Size = tuple[int | None, int | None]
"""Height and width in pixels; None means the model's native size."""

MAX_EXTRA_BYTES: Final = 65_536
_COLUMNS: Final = ("prompt", *RowParameters.model_fields, "seed", "height", "width", "model")
"""Columns that set a parameter. All other columns are copied into the metadata."""
_JOB_COLUMNS: Final = frozenset(JobRequest.model_fields) - {*_COLUMNS, "metadata"}
"""Parameters of jobs that rows of a dataset do not have. A copied one would look like a used
one."""
_COMPARED_FIELDS: Final = (*RowParameters.model_fields, "height", "width")
"""Fields in which duplicate rows agree, besides prompt and seed."""
_IMAGE_PARAMETERS: Final = frozenset({"mask_image", "strength", "image_guidance_scale"})
"""Parameters that need an image."""
_MIN_SIMILARITY: Final = 0.85
"""A column name at least this similar to a parameter's name is taken for a typing error."""


@dataclass(frozen=True, kw_only=True)
class RowDefaults:
    """Values that a run sets for all its rows."""

    parameters: RowParameters
    size: Size
    model: str | None
    seed: int
    shard_size: int
    columns: Mapping[str, str]
    """Parameter to the input column that holds it."""
    ignored_columns: frozenset[str] = frozenset()
    """Columns that are neither read nor copied."""


class PlannedRow(NamedTuple):
    """A valid row."""

    line: str
    """The row's JSON in the row file."""
    duplicate_key: str
    """Equal for rows that give the same images; only the prompt if the row sets nothing else."""
    images: int
    size: Size
    from_image: bool
    """Whether the row starts from an image."""
    skips_layers: bool
    """Whether the row has a `clip_skip`."""
    rescales_guidance: bool
    """Whether the row has `guidance_rescale`."""
    weighs_words: bool
    """Whether the row has `prompt_weighting`."""
    steps: int
    """Denoising steps of each image; 0 if they are the model's and the model is not known."""
    loras: LoraScales


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
        self._needs_image = "image" not in self._common and not _IMAGE_PARAMETERS.isdisjoint(
            self._common
        )
        """Whether a parameter of all rows needs an image, and each row must bring its own."""
        stand_in = {"image": NOT_YET_UPLOADED} if self._needs_image else {}
        common = JobRequest.parse({"prompt": "any", **self._common, **stand_in})
        admit(common, offers, images_come_later=True)
        self._images = common.num_images_per_prompt
        self._common_steps = self._steps(common)
        self._common_loras = common.loras
        self._common_values = {name: getattr(common, name) for name in _COMPARED_FIELDS}
        if self._images > defaults.shard_size:
            raise InvalidRequest(
                "shard_size", defaults.shard_size, "must be at least the images of one row"
            )
        self._prompt = defaults.columns.get("prompt", "prompt")
        self._parameter_of = _parameter_by_column(defaults.columns)
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
                not self._needs_image
                and not self._common_values["prompt_weighting"]
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
                    from_image=self._defaults.parameters.image is not None,
                    skips_layers=self._defaults.parameters.clip_skip is not None,
                    rescales_guidance=bool(self._defaults.parameters.guidance_rescale),
                    weighs_words=False,
                    steps=self._common_steps,
                    loras=self._common_loras,
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
        if request.num_images_per_prompt > self._defaults.shard_size:
            limit = f"must be at most the shard size, {self._defaults.shard_size}"
            raise RowRejected("num_images_per_prompt", request.num_images_per_prompt, limit)
        fields = {
            name: getattr(request, name) for name in parameters if name in ShardRow.model_fields
        }
        size = (request.height, request.width)
        duplicate_key = self._duplicate_key(request, parameters.get("seed") is not None)
        fields.setdefault("seed", derive_seed(self._defaults.seed, number))
        fields["row"] = number
        for name in ("loras", "guidance_rescale", "prompt_weighting"):
            if name in fields and fields[name] == self._common_values[name]:
                del fields[name]  # workers of release 0.1.0 know no such field, even an empty one
        if extra:
            fields["extra"] = extra
        return PlannedRow(
            line=canonical_json(fields).decode(),
            duplicate_key=duplicate_key,
            images=request.num_images_per_prompt,
            size=size,
            from_image=request.image is not None,
            skips_layers=request.clip_skip is not None,
            rescales_guidance=bool(request.guidance_rescale),
            weighs_words=request.prompt_weighting,
            steps=self._steps(request),
            loras=request.loras,
        )

    def _request(self, parameters: Mapping[str, Any], folder: Path | None) -> JobRequest:
        """Return what a row asks for. Upload its images only if everything else is valid."""
        images = {field: parameters[field] for field in IMAGE_FIELDS if field in parameters}
        stand_ins = dict.fromkeys(images, NOT_YET_UPLOADED)
        try:
            request = JobRequest.parse({**self._common, **parameters, **stand_ins})
            admit(request, self._offers)
            if not images:
                return request
            addresses = {
                field: self._row_images.address(field, image, folder)
                for field, image in images.items()
            }
            return JobRequest.parse({**self._common, **parameters, **addresses})
        except InvalidRequest as error:
            raise RowRejected(error.field, error.value, error.limit) from None

    def _steps(self, request: JobRequest) -> int:
        offer = self._offers.get(request.model or DEFAULT_MODEL)
        if offer is None:
            return request.denoised_steps(request.num_inference_steps or 0)
        steps = request.num_inference_steps or offer.num_inference_steps
        return request.denoised_steps(steps, offer.strength)

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
                    self._check_column_name(column)
                extra[column] = to_json_value(column, value)
            elif not is_missing(value) or (name == "prompt" and value == ""):
                parameters[name] = converted(name, value)
        if "prompt" not in parameters:
            raise RowRejected(self._prompt, None, "is missing")
        if extra and len(canonical_json(extra)) > MAX_EXTRA_BYTES:
            raise RowRejected(
                "extra", "…", f"copied columns must have at most {MAX_EXTRA_BYTES} bytes"
            )
        return parameters, extra

    def _check_column_name(self, column: object) -> None:
        if not isinstance(column, str) or not column:
            raise RowRejected("column", column, "must have a name")
        if column != escape_surrogates(column):
            raise RowRejected("column", column, "must have a UTF-8 name")
        ignoring = f"--ignore-column {column} (in Python ignore_columns=[{column!r}])"
        plain = column.lower().replace("-", "_").replace(" ", "_")
        if plain in _JOB_COLUMNS:
            raise InvalidRequest(
                "column",
                column,
                "is a parameter of jobs that the rows of a dataset do not have; rename the column "
                f"to copy it into the metadata, or leave it out with {ignoring}",
            )
        if like := difflib.get_close_matches(plain, _COLUMNS, 1, _MIN_SIMILARITY):
            raise InvalidRequest(
                "column",
                column,
                f"looks like {like[0]!r}; rename it, use it for {like[0]} with --column "
                f"{like[0]}={column} (in Python columns={{{like[0]!r}: {column!r}}}), or leave it "
                f"out with {ignoring}",
            )
        self._accepted_columns.add(column)


def _parameter_by_column(renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the parameter of each column. Raise InvalidRequest for an unknown parameter."""
    for name, column in renamed.items():
        if name not in _COLUMNS:
            limit = f"no such parameter; the parameters are {', '.join(_COLUMNS)}"
            raise InvalidRequest("column", f"{name}={column}", limit)
    return {renamed.get(name, name): name for name in _COLUMNS}

"""Check the options of a dataset, as a caller or the command line gives them.

Input: options. Output: a `DatasetSpec`, or an error that names the option, its value and the limit.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from imagefleet.producer.bulk.alternatives import NO_ALTERNATIVES, Alternatives, Mode
from imagefleet.producer.bulk.column_names import check_parameters, checked_ignored_columns
from imagefleet.producer.bulk.plan_builder import DatasetSpec
from imagefleet.producer.bulk.rejected_limit import RejectedLimit
from imagefleet.producer.bulk.row_images import RowImages
from imagefleet.producer.bulk.row_validation import RowDefaults
from imagefleet.shared.bulk.plan import BulkFormat, RowParameters
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.arguments import check_whole_number, plain_value
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, ROW_PARAMETERS, default_of
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS
from imagefleet.shared.jobs.request import JobRequest


def parse_spec(  # noqa: PLR0913 - every argument is an option of a dataset
    images: RowImages,
    *,
    format: BulkFormat | str = BulkFormat.WEBDATASET,
    image_format: ImageFormat | str = ImageFormat.PNG,
    shard_size: int | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    ignore_columns: Iterable[str] = (),
    dedupe: bool = False,
    alternatives: str | None = None,
    wildcards: str | Path | None = None,
    limit: int | None = None,
    max_rejected: int | str | None = None,
    height: int | None = None,
    width: int | None = None,
    model: str | None = None,
    **parameters: Any,
) -> DatasetSpec:
    """Return the dataset that is asked for. Upload the inputs of all rows, if they are files.

    Args:
        ignore_columns: columns of the input that are neither read nor copied.
        shard_size: images per shard. None: 1,000, or fewer if several workers live and would not
            get work.
        alternatives: `combinatorial` or `random`, which expand `{red|blue}` and wildcards in
            prompts; by default `random` if there are wildcards, else they are text.
        wildcards: folder with the lines of `__color__` in `color.txt`.
        limit: rows of the input to use, the first ones.
        max_rejected: refuse the run if more rows than this are rejected: a number, or a percentage
            of all rows, as "2%".
        parameters: parameters of all rows, with diffusers' names.

    Raises:
        InvalidRequest: an option is wrong.
        ConfigurationError, StorageDenied, StorageUnavailable: an input cannot be uploaded.
    """
    check_parameters(parameters)
    shard_size, seed, limit = map(plain_value, (shard_size, seed, limit))
    height, width = map(plain_value, (height, width))
    ignored_columns = checked_ignored_columns(ignore_columns)
    if limit is not None:
        check_whole_number("limit", limit, 1)
    dataset_format = _one_of(BulkFormat, "format", format)
    file_format = _one_of(ImageFormat, "image_format", image_format)
    given = {n: plain_value(value) for n, value in parameters.items() if value is not None}
    texts = {name: value for name, value in given.items() if name not in INPUT_FIELDS}
    addresses: dict[str, Any] = {
        name: images.address(name, given[name], Path()) for name in INPUT_FIELDS if name in given
    }
    return DatasetSpec(
        defaults=RowDefaults(
            parameters=_row_parameters({**texts, **addresses}),
            size=(height, width),
            model=model,
            seed=seed,
            shard_size=shard_size,
            columns=columns or {},
            ignored_columns=ignored_columns,
        ),
        format=dataset_format,
        image_format=file_format,
        dedupe=dedupe,
        alternatives=_alternatives(alternatives, wildcards),
        limit=limit,
        max_rejected=None if max_rejected is None else RejectedLimit.parse(max_rejected),
    )


def _alternatives(mode: str | None, wildcards: str | Path | None) -> Alternatives:
    if mode is None and wildcards is None:
        return NO_ALTERNATIVES
    folder = None if wildcards is None else Path(wildcards).expanduser()
    chosen = Mode.RANDOM if mode is None else _one_of(Mode, "alternatives", mode)
    return Alternatives(mode=chosen, wildcards=folder)


def _row_parameters(given: dict[str, Any]) -> RowParameters:
    """Parse the parameters for all rows. Raise InvalidRequest if one is wrong."""
    try:
        parsed = RowParameters.model_validate(given)
    except ValueError:
        JobRequest.parse({"prompt": "any", **given})  # raises InvalidRequest for the same value
        raise
    # Older releases refuse a plan that has such a field, even if it changes nothing.
    newer = [name for name in ROW_PARAMETERS if PARAMETERS[name].since > 1]
    unused = [name for name in newer if getattr(parsed, name) == default_of(name)]
    return parsed.model_copy(update=dict.fromkeys(unused))


def _one_of(kind: Any, field: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidRequest(field, value, f"must be one of {known}") from None

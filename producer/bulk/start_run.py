"""Start a bulk run, or find an existing one.

The user's arguments go in; a `BulkRun` comes out. Arguments are checked before anything is written.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.planner import DatasetSpec, plan_dataset, read_plan
from imagefleet.producer.bulk.readers import Rows
from imagefleet.producer.bulk.regenerate import SubmittedJob, regenerate
from imagefleet.producer.bulk.row_validation import RowDefaults
from imagefleet.producer.bulk.run import DEFAULT_PRIORITY, BulkRun
from imagefleet.producer.connection import Connection
from imagefleet.shared.bulk.plan import BulkFormat, Plan, RowParameters, run_id
from imagefleet.shared.errors import ConfigurationError, InvalidRequest, UnknownRun
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.storage import ObjectStore, announced_url, open_store
from imagefleet.shared.text import mask_url

DEFAULT_SHARD_SIZE: Final = 1_000
_BROKEN_URL: Final = re.compile("(s3|file)(:(?!//)|//)")
"""An address whose `://` was typed wrong, as s3:/bucket or s3//bucket."""


def start(  # noqa: PLR0913 - every argument is an option of a dataset
    connection: Connection,
    submit: Callable[..., SubmittedJob],
    rows: Rows,
    destination: str | Path,
    *,
    format: BulkFormat | str = BulkFormat.WEBDATASET,
    image_format: ImageFormat | str = ImageFormat.PNG,
    shard_size: int = DEFAULT_SHARD_SIZE,
    seed: int = 0,
    columns: dict[str, str] | None = None,
    dedupe: bool = False,
    max_failures: int | None = None,
    priority: int = DEFAULT_PRIORITY,
    height: int | None = None,
    width: int | None = None,
    model: str | None = None,
    **parameters: Any,
) -> BulkRun:
    """Plan and send a dataset, or resume it if the destination holds the same plan.

    See `Client.bulk`. `submit` is its method; it generates samples again to compare them.
    """
    if unknown := sorted(parameters.keys() - RowParameters.model_fields.keys()):
        known = ", ".join(RowParameters.model_fields)
        limit = f"no such parameter; the parameters of rows are {known}"
        raise InvalidRequest(unknown[0], parameters[unknown[0]], limit)
    if max_failures is not None and max_failures < 0:
        raise InvalidRequest("max_failures", max_failures, "must be at least 0")
    if not 0 <= priority <= 9:
        raise InvalidRequest("priority", priority, "must be between 0 and 9")
    defaults = RowDefaults(
        parameters=_row_parameters(parameters),
        size=(height, width),
        model=model,
        seed=seed,
        shard_size=shard_size,
        columns=columns or {},
    )
    spec = DatasetSpec(
        defaults=defaults,
        format=_one_of(BulkFormat, "format", format),
        image_format=_one_of(ImageFormat, "image_format", image_format),
        dedupe=dedupe,
    )
    url, store = _open_destination(destination)
    plan, _ = plan_dataset(rows, spec, store, connection.offers())
    run = _bulk_run(connection, submit, url, store, plan)
    run.resume(max_failures=max_failures, priority=priority)
    return run


def find(connection: Connection, submit: Callable[..., SubmittedJob], name: str | Path) -> BulkRun:
    """Return the run with this id or destination. Raise UnknownRun if there is none."""
    destination = str(name)
    with suppress(UnknownRun), connection.runs() as runs:
        destination = runs.get(destination).destination
    url, store = _open_destination(destination)
    plan = read_plan(store)
    if plan is None:
        raise UnknownRun(
            f"{destination!r} is neither a run in this Redis nor a destination with a plan"
        )
    return _bulk_run(connection, submit, url, store, plan)


def _bulk_run(
    connection: Connection,
    submit: Callable[..., SubmittedJob],
    destination: str,
    store: ObjectStore,
    plan: Plan,
) -> BulkRun:
    return BulkRun(
        id=run_id(store.url, plan),
        destination=destination,
        plan=plan,
        store=store,
        connection=connection,
        regenerate=partial(regenerate, submit),
    )


def _open_destination(destination: str | Path) -> tuple[str, ObjectStore]:
    """Return the URL of the destination, which every host can open, and its store.

    A path without a scheme is a folder on this host.
    """
    url = str(destination)
    if _BROKEN_URL.match(url):
        limit = "must be s3://bucket/prefix, file:///folder or a folder; ./ makes it a folder"
        raise InvalidRequest("destination", url, limit)
    if "://" not in url:
        url = Path(url).absolute().as_uri()
    try:
        store = open_store(url)
    except ConfigurationError as error:
        sentence = str(error).partition(": ")[2] or str(error)
        raise InvalidRequest("destination", mask_url(url), sentence) from None
    address = announced_url(url, store)
    if address is None:
        raise InvalidRequest("destination", url, "must be a store that workers can reach")
    return address, store


def _row_parameters(given: dict[str, Any]) -> RowParameters:
    """Parse the parameters for all rows. Raise InvalidRequest if one is wrong."""
    try:
        return RowParameters.model_validate(given)
    except ValueError:
        JobRequest.parse({"prompt": "any", **given})  # raises InvalidRequest for the same value
        raise


def _one_of(kind: Any, field: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidRequest(field, value, f"must be one of {known}") from None

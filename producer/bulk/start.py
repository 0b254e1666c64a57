"""The handle of a dataset's run: by starting it, or by finding it.

Goes in: what a user gave. What is wrong with it is said before anything is written.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from imagefleet.producer.bulk.planner import DatasetSpec, plan, read_plan
from imagefleet.producer.bulk.readers import Rows
from imagefleet.producer.bulk.regenerate import Regenerate
from imagefleet.producer.bulk.row_validation import RowDefaults
from imagefleet.producer.bulk.run import DEFAULT_PRIORITY, BulkRun
from imagefleet.producer.connection import Connection
from imagefleet.shared.bulk.plan import BulkFormat, Plan, RowParameters, run_id
from imagefleet.shared.errors import ConfigurationError, InvalidRequest, UnknownRun
from imagefleet.shared.jobs.model import ImageFormat, JobRequest
from imagefleet.shared.storage import ObjectStore, open_store

DEFAULT_SHARD_SIZE: Final = 1_000


def start(
    connection: Connection,
    regenerate: Regenerate,
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
    """Plan and send a dataset, or go on with the same one. See `Client.bulk`."""
    if unknown := sorted(parameters.keys() - RowParameters.model_fields.keys()):
        known = ", ".join(RowParameters.model_fields)
        raise InvalidRequest(
            unknown[0], parameters[unknown[0]], f"no such parameter; besides {known}"
        )
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
    where, store = _open_destination(destination)
    made, _ = plan(rows, spec, store, connection.offers())
    run = _handle(connection, regenerate, where, store, made)
    run.resume(max_failures=max_failures, priority=priority)
    return run


def find(connection: Connection, regenerate: Regenerate, name: str | Path) -> BulkRun:
    """The run of a destination, or of a run id. Raises UnknownRun."""
    destination = str(name)
    with suppress(UnknownRun), connection.runs() as runs:
        destination = runs.get(destination).destination
    where, store = _open_destination(destination)
    made = read_plan(store)
    if made is None:
        raise UnknownRun(f"{destination!r} is neither a run here nor a destination with a plan")
    return _handle(connection, regenerate, where, store, made)


def _handle(
    connection: Connection,
    regenerate: Regenerate,
    destination: str,
    store: ObjectStore,
    made: Plan,
) -> BulkRun:
    return BulkRun(
        id=run_id(store.url, made),
        destination=destination,
        plan=made,
        store=store,
        connection=connection,
        regenerate=regenerate,
    )


def _open_destination(destination: str | Path) -> tuple[str, ObjectStore]:
    """The destination as every host can open it, and its store. A path without a scheme is a
    folder here."""
    url = str(destination)
    if "://" not in url:
        url = Path(url).absolute().as_uri()
    if url.startswith("memory:"):
        raise InvalidRequest("destination", url, "must be a place that workers can reach")
    try:
        store = open_store(url)
    except ConfigurationError as error:
        sentence = str(error).partition(": ")[2] or str(error)
        raise InvalidRequest("destination", url, sentence) from None
    query = urlsplit(url).query
    return store.url + (f"?{query}" if query else ""), store


def _row_parameters(given: dict[str, Any]) -> RowParameters:
    """Raises InvalidRequest."""
    try:
        return RowParameters.model_validate(given)
    except ValueError:
        JobRequest.parse({"prompt": "any", **given})  # says it in our words
        raise


def _one_of(kind: Any, field: str, value: object) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise InvalidRequest(field, value, f"must be one of {known}") from None

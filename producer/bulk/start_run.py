"""Start a bulk run, or find an existing one.

Input: the user's arguments. Output: a `BulkRun`. Arguments are checked before anything is written.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.dataset_options import parse_spec
from imagefleet.producer.bulk.destination import open_destination
from imagefleet.producer.bulk.inputs import Rows
from imagefleet.producer.bulk.planner import plan_dataset, read_plan
from imagefleet.producer.bulk.receivers import CallbackAddress
from imagefleet.producer.bulk.regenerate import SubmittedJob, regenerate
from imagefleet.producer.bulk.row_images import Resolve, UploadedRowImages
from imagefleet.producer.bulk.run import POLL_S, BulkRun
from imagefleet.producer.bulk.run_inputs import RunInputs
from imagefleet.producer.bulk.shard_sender import DEFAULT_PRIORITY
from imagefleet.producer.bulk.shard_sizes import ShardSizing
from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.bulk.file_layout import PLAN
from imagefleet.shared.bulk.plan import Plan
from imagefleet.shared.bulk.run_ids import run_ids
from imagefleet.shared.errors import PlanConflict, PlanDamaged, UnknownRun
from imagefleet.shared.jobs.arguments import check_whole_number, plain_value
from imagefleet.shared.jobs.model import State
from imagefleet.shared.storage import ObjectStore, place_of

_RELEASE_S: Final = 30.0
"""A worker releases a shard between two batches, and a dead one does not."""


def start(
    connection: Connection,
    submit: Callable[..., SubmittedJob],
    rows: Rows,
    destination: str | Path,
    *,
    max_failures: int | None = None,
    priority: int = DEFAULT_PRIORITY,
    callback_url: str | None = None,
    callback_tenant: str | None = None,
    **planning: Any,
) -> BulkRun:
    """Plan and send a dataset, or resume it if the destination holds the same plan.

    See `Client.bulk`.

    Args:
        submit: its method; it generates samples again to compare them.
        callback_url: the http(s) URL that receives a signed webhook for each event of the run. A
            run that is resumed without one keeps the one it has.
        callback_tenant: the tenant whose secrets sign these webhooks.
        planning: the other arguments of `plan_run`.
    """
    max_failures, priority = map(plain_value, (max_failures, priority))
    if max_failures is not None:
        check_whole_number("max_failures", max_failures, 0)
    check_whole_number("priority", priority, 0, 9)
    address = CallbackAddress.parse(callback_url, callback_tenant)
    run = plan_run(connection, submit, rows, destination, **planning)
    receiver = None if address is None else address.receiver(run)
    run.resume(max_failures=max_failures, priority=priority, receiver=receiver)
    return run


def plan_run(
    connection: Connection,
    submit: Callable[..., SubmittedJob],
    rows: Rows,
    destination: str | Path,
    *,
    input_format: str | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
    upload_files: bool = False,
    resolve: Resolve | None = None,
    append: bool = False,
    **options: Any,
) -> BulkRun:
    """Plan a dataset, unless the destination holds the same plan, and send nothing.

    Args:
        submit: see `start`.
        upload_files: whether text in the columns of images may name files of this host.
        resolve: see `RowImages`.
        append: whether rows behind those that the destination's plan has are added to the dataset.
        options: those of `dataset_options.parse_spec`.
    """
    model = options.get("model")
    with UploadedRowImages(
        lambda: connection.store(model), read_files=upload_files, resolve=resolve
    ) as images:
        spec = parse_spec(images, **options)
        inputs = RunInputs.open(
            connection,
            rows,
            destination,
            spec,
            input_format=input_format,
            delimiter=delimiter,
            encoding=encoding,
        )
        url, store, sizing = inputs.url, inputs.store, ShardSizing.of(inputs.workers)
        before_append = partial(_cancel_run, connection, url, store) if append else None
        plan, _ = plan_dataset(
            inputs.sources,
            spec,
            store,
            inputs.offers,
            images,
            sizing,
            before_append=before_append,
        )
    return _bulk_run(connection, submit, url, store, plan)


def find(connection: Connection, submit: Callable[..., SubmittedJob], name: str | Path) -> BulkRun:
    """Return the run with this id or destination.

    Raises:
        UnknownRun: there is none.
        PlanConflict: the run's destination was emptied, and holds the plan of another run now.
        PlanDamaged: the run's destination holds no plan any more, or one that cannot be read.
    """
    name, recorded = str(name), None
    with suppress(UnknownRun), connection.runs(name) as runs:
        recorded = runs.get(name).destination
    url, store = open_destination(recorded or name)
    plan = read_plan(store)
    if recorded is None and plan is None:
        raise UnknownRun(f"{name!r} is neither a run in this Redis nor a destination with a plan")
    if plan is None:
        raise PlanDamaged(
            f"run {name}: {store.url}{PLAN} is missing; the command that started the run writes it "
            "again"
        )
    if recorded is not None and name not in run_ids(url, store, plan):
        raise PlanConflict(
            f"run {name}: {store.url} holds the plan of another run now; only `imagefleet bulk "
            "cancel` takes this id"
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
        id=_id_of(connection, destination, store, plan),
        destination=destination,
        plan=plan,
        store=store,
        connection=connection,
        regenerate=partial(regenerate, submit),
    )


def _cancel_run(connection: Connection, destination: str, store: ObjectStore, plan: Plan) -> None:
    """Cancel the run of `plan`, before a larger plan replaces it. Finished shards are of both.

    Wait a while until workers have released its shards, which would fail without their plan.
    """
    run = _id_of(connection, destination, store, plan)
    deadline = time.monotonic() + _RELEASE_S
    with suppress(UnknownRun), connection.runs(run) as runs:
        if runs.cancel(run) is State.SUCCEEDED:
            return
        while runs.get(run).shards_by_state[State.RUNNING] and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _id_of(connection: Connection, destination: str, store: ObjectStore, plan: Plan) -> str:
    """Return the id of the run. One that was started before the id named the server keeps its."""
    current, older = run_ids(destination, store, plan)
    with connection.runs(older) as runs:
        known = runs.destination_and_shards(older)
    is_there = known is not None and place_of(known[0], store) == place_of(destination, store)
    return older if is_there else current

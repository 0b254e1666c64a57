"""Routes of our own runs: a dataset is ordered, watched, stopped and downloaded."""

import asyncio
import io
import json
from collections.abc import AsyncGenerator
from hashlib import sha256
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from imagefleet.producer.gateway.access.api_key import Scope
from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.batches.batch_document import (
    CANCEL_ANSWERS,
    EVENTS_ANSWERS,
    RUN_ANSWERS,
    RUN_CREATE_ANSWERS,
    RUN_FILE_ANSWERS,
    RUN_FILES_ANSWERS,
    RUNS_ANSWERS,
    run_body_schema,
)
from imagefleet.producer.gateway.batches.batch_output import FILE_PATH
from imagefleet.producer.gateway.batches.batch_request import (
    RunRequest,
    checked_options,
    run_order,
)
from imagefleet.producer.gateway.batches.file_routes import DOWNLOAD, PARTS_BYTES
from imagefleet.producer.gateway.batches.orders_of_caller import CallerOrders, keeper_of, runs_of
from imagefleet.producer.gateway.batches.pages import list_body, page_of
from imagefleet.producer.gateway.batches.run_access import readable_run
from imagefleet.producer.gateway.batches.run_files import find_file, list_files
from imagefleet.producer.gateway.batches.run_order import RUN_PREFIX, OrderRecord, RunOrder
from imagefleet.producer.gateway.batches.run_shapes import run_body
from imagefleet.producer.gateway.files.stored_file import OPENAI_PREFIX
from imagefleet.producer.gateway.problems import Problem, stopping, wrong_field
from imagefleet.producer.gateway.web.bodies import check_fields, off_loop, read_json
from imagefleet.producer.gateway.web.callers import base_url, caller_with, gateway_of
from imagefleet.producer.gateway.web.events import event, event_stream
from imagefleet.producer.gateway.web.held_bytes import held_bytes

router: Final = APIRouter(prefix="/v1/runs", tags=["Runs"])
Submitter = Annotated[Caller, Depends(caller_with(Scope.SUBMIT))]
Reader = Annotated[Caller, Depends(caller_with(Scope.READ))]
_DIGEST_CHARACTERS: Final = 16
"""So an order names its rows, and the same `Idempotency-Key` with other rows is another order."""
_WATCH_S: Final = 1.0
"""Seconds between two looks at a run that is watched."""


@router.post("", responses=RUN_CREATE_ANSWERS, openapi_extra=run_body_schema())
async def create_run(request: Request, caller: Submitter) -> dict[str, Any]:
    """Make a dataset of rows. It is answered at once."""
    fields, orders = await read_json(request), runs_of(request, caller)
    asked = await off_loop(request, check_fields, RunRequest, fields)
    if (asked.rows is None) == (asked.input_file_id is None):
        raise wrong_field("rows", asked.input_file_id, "or input_file_id must be given, not both")
    gateway = orders.gateway

    def order_of(name: str) -> RunOrder:
        aliases = gateway.settings.model_aliases
        options = checked_options(asked, caller, gateway.inputs, aliases)
        if asked.input_file_id is not None:
            file_id = gateway.files.find(caller.tenant, asked.input_file_id).id
        else:
            lines = "".join(json.dumps(row) + "\n" for row in asked.rows or ()).encode()
            file_id = f"{OPENAI_PREFIX}{name}rows{sha256(lines).hexdigest()[:_DIGEST_CHARACTERS]}"
            options |= {"input_format": "jsonl"}
        order = run_order(asked, caller, RUN_PREFIX + name, file_id, options)
        if asked.rows is not None:
            gateway.files.save(
                caller.tenant,
                io.BytesIO(lines),
                id=file_id,
                name="rows.jsonl",
                content_type="application/jsonl",
                purpose="user_data",
            )
        return order

    return await _body(orders, await orders.create(request, fields, order_of))


@router.get("", responses=RUNS_ANSWERS)
async def list_runs(
    request: Request,
    caller: Reader,
    after: Annotated[str, Query()] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> dict[str, Any]:
    """List runs, the newest first. A batch is one, too."""
    orders = runs_of(request, caller)
    page, has_more = page_of(await orders.list(), "run", after, limit)
    return list_body([await _body(orders, record) for record in page], has_more=has_more)


@router.get("/{run_id}", responses=RUN_ANSWERS)
async def get_run(request: Request, caller: Reader, run_id: str) -> dict[str, Any]:
    """Describe a run."""
    orders = runs_of(request, caller)
    return await _body(orders, await orders.find(run_id))


@router.post("/{run_id}/cancel", responses=CANCEL_ANSWERS)
async def cancel_run(request: Request, caller: Submitter, run_id: str) -> dict[str, Any]:
    """Stop a run. Finished shards stay."""
    orders = runs_of(request, caller)
    return await _body(orders, await orders.cancel(run_id))


@router.get("/{run_id}/events", response_class=Response, responses=EVENTS_ANSWERS)
async def watch_run(request: Request, caller: Reader, run_id: str) -> Response:
    """Send the run whenever it has changed, until it has ended."""
    orders = runs_of(request, caller)
    await orders.find(run_id)

    def last_event(problem: Problem) -> str:
        return event("stopping", {"id": run_id, "message": problem.message})

    return event_stream(_events(orders, run_id), last_event)


async def _events(orders: CallerOrders, run_id: str) -> AsyncGenerator[str]:
    sent: dict[str, Any] = {}
    while True:
        record = await orders.find(run_id)
        body = await _body(orders, record)
        if body != sent:
            sent = body
            yield event("run", body)
        if record.has_ended:
            yield event("done", {"id": run_id})
            return
        if orders.gateway.watcher.is_closed:
            raise stopping()
        await asyncio.sleep(_WATCH_S)


@router.get("/{run_id}/files", responses=RUN_FILES_ANSWERS)
async def list_run_files(
    request: Request,
    caller: Reader,
    run_id: str,
    after: Annotated[str, Query()] = "",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 1_000,
) -> dict[str, Any]:
    """List the files of finished shards, each with an address that opens for a while."""
    orders = runs_of(request, caller)
    record = await orders.find(run_id)
    threads, addresses = orders.gateway.store_threads, orders.gateway.addresses
    url = base_url(request)
    run = await threads.run(orders.keeper.places.open, record)
    files, has_more = await threads.run(list_files, run, after, limit)
    data = [
        {
            "id": file.key,
            "object": "run.file",
            "bytes": file.size,
            "sha256": file.sha256,
            "url": url + addresses.sign_path(FILE_PATH.format(run_id=run_id, key=file.key)),
        }
        for file in files
    ]
    return list_body(data, has_more=has_more)


@router.get("/{run_id}/files/{key:path}", response_class=Response, responses=RUN_FILE_ANSWERS)
async def get_run_file(
    request: Request,
    run_id: str,
    key: str,
    expires: Annotated[str, Query()] = "",
    signature: Annotated[str, Query()] = "",
) -> Response:
    """Return one file of a finished shard: with a key, or by a signed address."""
    gateway, keeper = gateway_of(request), keeper_of(request)
    path = FILE_PATH.format(run_id=run_id, key=key)
    record = await readable_run(request, run_id, path, expires, signature)
    run = await gateway.store_threads.run(keeper.places.open, record)
    file = await gateway.store_threads.run(find_file, run, key)
    headers = {**DOWNLOAD, "content-length": str(file.size), "vary": "authorization"}
    if file.media_type.startswith("image/"):
        name = key.rpartition("/")[2]
        headers["content-disposition"] = f'inline; filename="{name}"'
    if file.sha256 is not None:
        headers["etag"] = f'"{file.sha256}"'
    await held_bytes(request).take_for_answer(min(file.size, PARTS_BYTES))
    content = gateway.store_threads.each(file.parts)
    return StreamingResponse(content, media_type=file.media_type, headers=headers)


async def _body(orders: CallerOrders, record: OrderRecord) -> dict[str, Any]:
    return run_body(record, await orders.run_status(record))

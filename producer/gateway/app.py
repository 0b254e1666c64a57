"""Build the web application of the gateway from its dialects."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from fastapi import FastAPI

from imagefleet.producer.gateway.batches import batch_routes, file_routes, run_routes
from imagefleet.producer.gateway.batches.run_keeper import RunKeeper
from imagefleet.producer.gateway.datasets import dataset_routes, verification_routes
from imagefleet.producer.gateway.datasets.verifier import Verifier
from imagefleet.producer.gateway.gateway import Gateway
from imagefleet.producer.gateway.history import job_routes
from imagefleet.producer.gateway.openai import images, models
from imagefleet.producer.gateway.openai.errors import ERROR_SCHEMA, error_body
from imagefleet.producer.gateway.operations import (
    callback_routes,
    dead_letter_routes,
    fleet_routes,
)
from imagefleet.producer.gateway.page import files as page_files
from imagefleet.producer.gateway.predictions.dialect import PREDICTIONS
from imagefleet.producer.gateway.web import health, image_files, me
from imagefleet.producer.gateway.web.dialect import Dialect
from imagefleet.producer.gateway.web.document import describe
from imagefleet.producer.gateway.web.errors import handle_errors
from imagefleet.producer.gateway.web.held_bytes import ByteBudget
from imagefleet.producer.gateway.web.limit_body import BodyLimit, LimitBody
from imagefleet.producer.gateway.web.refused_tries import NoteRefusedTries
from imagefleet.producer.gateway.web.request_log import RequestLog
from imagefleet.producer.gateway.web.send_in_parts import SendInParts
from imagefleet.producer.gateway.webui.dialect import WEBUI

_OPENAI: Final = Dialect(
    routers=(
        images.router,
        models.router,
        file_routes.router,
        batch_routes.router,
        run_routes.router,
        dataset_routes.router,
        verification_routes.router,
        image_files.router,
        job_routes.router,
        fleet_routes.router,
        dead_letter_routes.router,
        callback_routes.router,
        me.router,
        health.router,
        page_files.router,
    ),
    paths=re.compile("/"),
    error_body=error_body,
    error_schema=ERROR_SCHEMA,
)
_DIALECTS: Final = (WEBUI, PREDICTIONS, _OPENAI)
"""The first one whose paths fit has a path."""


def build_app(gateway: Gateway) -> FastAPI:
    """Return the application, which serves until its lifespan ends."""
    app = FastAPI(
        title="imagefleet",
        version=version("imagefleet"),
        lifespan=_lifespan,
        docs_url=None,  # its pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.gateway = gateway
    app.state.run_keeper = RunKeeper(gateway)
    app.state.verifier = Verifier(gateway, app.state.run_keeper)
    for dialect in _DIALECTS:
        for router in dialect.routers:
            app.include_router(router)
    handle_errors(app, _DIALECTS)
    describe(app, _DIALECTS, needs_keys=gateway.needs_keys)
    settings = gateway.settings
    limit = BodyLimit(
        max_bytes=settings.http_max_body_bytes, timeout_s=settings.http_body_timeout_s
    )
    of_files = file_routes.body_limit(settings.http_max_file_bytes, limit.timeout_s)
    app.add_middleware(
        LimitBody,
        budget=ByteBudget(settings.http_max_held_bytes),
        limit=limit,
        limit_of_path={file_routes.PATH: of_files},
    )
    app.add_middleware(NoteRefusedTries, repeats=gateway.repeats)
    app.add_middleware(RequestLog)
    app.add_middleware(SendInParts)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    gateway: Gateway = app.state.gateway
    keeper: RunKeeper = app.state.run_keeper
    verifier: Verifier = app.state.verifier
    await gateway.start()
    keeper.start()
    verifier.start()
    yield
    verifier.close()
    keeper.close()
    gateway.close()

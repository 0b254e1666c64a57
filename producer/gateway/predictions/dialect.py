"""Gather the routes of predictions, and how they write errors."""

import re
from typing import Final

from imagefleet.producer.gateway.predictions import (
    model_versions,
    routes,
    stream_routes,
    webhook_secret,
)
from imagefleet.producer.gateway.predictions.errors import ERROR_SCHEMA, MEDIA_TYPE, error_body
from imagefleet.producer.gateway.web.dialect import Dialect

PREDICTIONS: Final = Dialect(
    routers=(
        routes.router,
        stream_routes.router,
        model_versions.router,
        webhook_secret.router,
    ),
    paths=re.compile(r"/v1/(predictions|webhooks)(/|$)|/v1/models/.+/(predictions$|versions/)"),
    error_body=error_body,
    error_schema=ERROR_SCHEMA,
    error_media_type=MEDIA_TYPE,
)

"""Put the routes of AUTOMATIC1111's API together."""

import re
from typing import Final

from imagefleet.producer.gateway.web.dialect import Dialect
from imagefleet.producer.gateway.webui import generation, lists, options, progress
from imagefleet.producer.gateway.webui.errors import ERROR_SCHEMA, error_body

WEBUI: Final = Dialect(
    routers=(generation.router, progress.router, options.router, lists.router),
    paths=re.compile("/sdapi/"),
    error_body=error_body,
    error_schema=ERROR_SCHEMA,
)

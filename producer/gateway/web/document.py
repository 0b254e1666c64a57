"""Complete the OpenAPI document: who may call each route, and with which errors it answers.

Routes describe their own answers. What all of them have in common follows here from what they
read: a body, a caller, parameters in the path.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute

from imagefleet.producer.gateway.web.callers import FindCaller
from imagefleet.producer.gateway.web.dialect import Dialect
from imagefleet.producer.gateway.web.schemas import TEXT

OF_JOBS: Final = (404, 409, 410, 500, 504)
"""Statuses with which routes that wait for images answer, beside those that all routes have."""
_OF_BODIES: Final = (400, 408, 413, 415)
_OF_CALLERS: Final = (401, 403, 429, 503)
_ABOUT: Final = {
    400: "A parameter is wrong, or the job failed because of one.",
    401: "The key is missing or not valid.",
    403: "The key lacks a right, the request comes from a web page, or an address is not signed.",
    404: "It does not exist, or belongs to another tenant.",
    408: "The body did not come in time.",
    409: "The job was cancelled, or its id names another one.",
    410: "The image was deleted.",
    413: "The body is too large.",
    415: "The body has another media type, or is compressed.",
    429: "The rate or the quota of the key is used up, or the fleet's queue is full.",
    500: "The job failed.",
    503: "Redis or the store does not answer, the gateway ends, or it has no memory left now.",
    504: "The job did not end in time; it goes on.",
}
_SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic", "description": "The password is the key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_REQUEST_ID: Final = {
    "x-request-id": {"description": "The id that the log has.", "schema": TEXT, "required": True}
}
_HEADERS_OF: Final[Mapping[int, Mapping[str, Any]]] = {
    401: {"www-authenticate": {"schema": TEXT, "required": True}},
    429: {"retry-after": {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "required": True}},
    503: {"retry-after": {"schema": {"type": "string", "pattern": "^[0-9]+$"}, "required": True}},
}
_SHOULD_RETRY: Final = {"schema": {"enum": ["true", "false"]}, "required": True}


def may_answer(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that also answers with these errors."""
    return {status: {"description": _ABOUT[status]} for status in statuses}


def of_events(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `content` of an answer with server-sent events.

    The schema is that of each event, as `itemSchema` will be in OpenAPI 3.2.

    Args:
        data: the JSON schema of what stands in `data`.
    """
    text = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    event = {
        "type": "object",
        "properties": {"id": TEXT, "event": TEXT, "data": text},
        "required": ["event", "data"],
    }
    return {"text/event-stream": {"schema": event}}


def describe(app: FastAPI, dialects: Sequence[Dialect], *, needs_keys: bool) -> None:
    """Let the document of the application be complete."""
    write = app.openapi

    def write_all() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = write()
            components = document.setdefault("components", {})
            components["securitySchemes"] = _SECURITY
            schemas = components.setdefault("schemas", {})
            for dialect, route in _routes(dialects):
                schemas[dialect.error_schema["title"]] = dialect.error_schema
                for method in route.methods or ():
                    operation = document["paths"][route.path_format][method.lower()]
                    _complete(operation, dialect, route, needs_keys=needs_keys)
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = write_all  # type: ignore[method-assign]


def _routes(dialects: Iterable[Dialect]) -> Iterator[tuple[Dialect, APIRoute]]:
    for dialect in dialects:
        for router in dialect.routers:
            for route in router.routes:
                if isinstance(route, APIRoute) and route.include_in_schema:
                    yield dialect, route


def _complete(
    operation: dict[str, Any], dialect: Dialect, route: APIRoute, *, needs_keys: bool
) -> None:
    answers = operation["responses"]
    answers.pop("422", None)  # FastAPI's own; wrong parameters are answered with 400
    asks_for_key = any(isinstance(each.call, FindCaller) for each in route.dependant.dependencies)
    if asks_for_key:
        operation["security"] = [{name: []} for name in _SECURITY] if needs_keys else []
    for status in _statuses(operation, asks_for_key=asks_for_key):
        answers.setdefault(str(status), {"description": _ABOUT[status]})
    error = {"$ref": f"#/components/schemas/{dialect.error_schema['title']}"}
    for status, answer in answers.items():
        headers = {**answer.get("headers", {}), **_REQUEST_ID}
        if status >= "400":
            headers |= {**_HEADERS_OF.get(int(status), {}), "x-should-retry": _SHOULD_RETRY}
            answer["content"] = {dialect.error_media_type: {"schema": error}}
        answer["headers"] = headers
    operation["responses"] = dict(sorted(answers.items()))


def _statuses(operation: Mapping[str, Any], *, asks_for_key: bool) -> set[int]:
    places = {parameter["in"] for parameter in operation.get("parameters", ())}
    return {
        *(_OF_CALLERS if asks_for_key else ()),
        *(_OF_BODIES if "requestBody" in operation else ()),
        *((404,) if "path" in places else ()),
        *((400,) if places & {"query", "header"} else ()),
    }

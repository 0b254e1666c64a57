"""Define the words that the OpenAPI document of the gateway is written with: JSON schemas.

https://json-schema.org/draft/2020-12. Each route's package puts its own answers together from them.
"""

from typing import Any, Final

Answers = dict[int | str, dict[str, Any]]
"""It has the answers of a route by their status, as FastAPI takes them."""
Schema = dict[str, Any]

TEXT: Final = {"type": "string"}
TEXT_OR_NULL: Final = {"type": ["string", "null"]}
COUNT: Final = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: Final = {"type": ["integer", "null"]}
NUMBER: Final = {"type": "number"}
NUMBER_OR_NULL: Final = {"type": ["number", "null"]}
FLAG: Final = {"type": "boolean"}
TIME_OR_NULL: Final = {"type": ["number", "null"], "description": "Unix seconds."}


def object_of(properties: dict[str, Any], **more: Any) -> Schema:
    """Return the schema of an object that has all of these."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


def array_of(item: Schema, **more: Any) -> Schema:
    """Return the schema of a list of such items."""
    return {"type": "array", "items": item, **more}


def list_object_of(item: Schema, title: str, **more: Any) -> Schema:
    """Return the schema of an object whose `data` are such items, and which also has all of
    `more`."""
    return object_of({"object": {"const": "list"}, "data": array_of(item), **more}, title=title)


def in_json(about: str, schema: Schema) -> dict[str, Any]:
    """Return the description of an answer in JSON."""
    return {"description": about, "content": {"application/json": {"schema": schema}}}

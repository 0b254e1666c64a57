"""Describe the parameters of a job by JSON schemas, for the OpenAPI document of the gateway."""

from typing import Any

from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.request import JobRequest


def parameter_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each parameter: its type, its limits and what it is for."""
    schema = JobRequest.model_json_schema()
    types = schema["$defs"]
    return {
        name: _without_references(schema["properties"][name], types) | {"description": row.about}
        for name, row in PARAMETERS.items()
    }


def _without_references(schema: Any, types: dict[str, Any]) -> Any:
    """Return a schema with the types in the place of references to them, without titles."""
    if isinstance(schema, list):
        return [_without_references(each, types) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _without_references(types[name], types) | rest
    return {key: _without_references(each, types) for key, each in schema.items() if key != "title"}

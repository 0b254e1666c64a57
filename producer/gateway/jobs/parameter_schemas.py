"""Describe the parameters of a job by JSON schemas, for the OpenAPI document of the gateway."""

from typing import Any

from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.request import JobRequest


def parameter_schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each parameter: its type, its limits and what it is for."""
    properties = without_references(JobRequest.model_json_schema())["properties"]
    return {name: properties[name] | {"description": row.about} for name, row in PARAMETERS.items()}


def without_references(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of pydantic's with its `$defs` in the place of the references to them.

    In the OpenAPI document such references would lead nowhere.
    """
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    resolved: dict[str, Any] = _resolved(rest, schema.get("$defs", {}))
    return resolved


def _resolved(schema: Any, types: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_resolved(each, types) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolved(types[name], types) | rest
    return {key: _resolved(each, types) for key, each in schema.items()}

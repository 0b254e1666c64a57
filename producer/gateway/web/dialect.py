"""Say what the routes of one API have in common: their paths, and how they write errors."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from imagefleet.producer.gateway.problems import Problem


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One API that clients speak."""

    routers: Sequence[APIRouter]
    paths: re.Pattern[str]
    """Errors at paths that begin so are written in this dialect, also where no route is."""
    error_body: Callable[[Problem], Mapping[str, Any]]
    """It writes the body of an error."""
    error_schema: Mapping[str, Any]
    """It is the JSON schema of what `error_body` writes."""
    error_media_type: str = "application/json"


def dialect_of(dialects: Sequence[Dialect], path: str) -> Dialect:
    """Return the first dialect that has this path; the last one has what is left."""
    return next((each for each in dialects if each.paths.match(path)), dialects[-1])

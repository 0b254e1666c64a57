"""Check the `metadata` of a job: the caller's own, which the fleet stores and passes on unread."""

import json
from typing import Any, Final

MAX_METADATA_BYTES: Final = 4_096
MAX_METADATA_DEPTH: Final = 32
"""At most this many lists and mappings lie inside each other. Parsers of JSON stop at 200 levels,
some earlier."""


def check_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata as they are read back from JSON: tuples become lists.

    Raises:
        ValueError: JSON cannot hold them, or they are too large or nested too deep.
    """
    try:
        text = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        size = len(text.encode())
        loaded: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"must hold only what JSON can hold: {error}") from None
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"must be at most {MAX_METADATA_BYTES} bytes as JSON; has {size}")
    if _is_deeper(loaded, MAX_METADATA_DEPTH):
        raise ValueError(f"must not be nested more than {MAX_METADATA_DEPTH} levels deep")
    return loaded


def _is_deeper(value: object, levels: int) -> bool:
    """Return whether more than `levels` lists and mappings lie inside each other."""
    level: list[object] = [value]
    for _ in range(levels + 1):
        containers = [each for each in level if isinstance(each, dict | list)]
        level = [
            child
            for each in containers
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return bool(containers)

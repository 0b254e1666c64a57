"""Answer with JSON that holds images in base64, without copies of them.

`json.dumps` would copy an answer of 100 MB three times, and hold the interpreter's lock meanwhile.
"""

import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response, StreamingResponse

from imagefleet.producer.gateway.web.held_bytes import LARGE_BYTES
from imagefleet.shared.jobs.result import ImageResult


@dataclass(frozen=True, slots=True)
class Base64:
    """A file in base64. It stands in JSON as a text."""

    text: bytes = field(repr=False)


def bytes_in_base64(images: Iterable[ImageResult]) -> int:
    """Return how much memory images take that are read one after the other, and kept in base64."""
    sizes = [image.size for image in images]
    return sum(sizes) * 4 // 3 + max(sizes, default=0)


def image_json(body: Mapping[str, Any], headers: Mapping[str, str]) -> Response:
    """Return the answer with this JSON, whose values may be of `Base64`. A large one is sent in
    parts, and its images are forgotten one by one."""
    mark, files = uuid.uuid4().hex, list[bytes]()

    def place(value: object) -> str:
        if not isinstance(value, Base64):
            raise TypeError(f"{type(value).__name__} does not stand in JSON")
        files.append(value.text)
        return mark

    text = json.dumps(
        body, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=place
    )
    first, *others = text.encode().split(mark.encode())
    parts = [first]
    for file, other in zip(files, others, strict=True):
        parts += file, other
    length = sum(map(len, parts))
    if length <= LARGE_BYTES:
        return Response(b"".join(parts), media_type="application/json", headers=headers)
    return StreamingResponse(
        _each(parts),
        media_type="application/json",
        headers={**headers, "content-length": str(length)},
    )


async def _each(parts: list[bytes]) -> AsyncIterator[bytes]:
    parts.reverse()
    while parts:
        yield parts.pop()

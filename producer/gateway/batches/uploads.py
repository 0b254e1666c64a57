"""Read an upload: a form with one file, as OpenAI's or as Replicate's API takes it."""

import json
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from typing import Any, Final, cast

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from imagefleet.producer.gateway.files.stored_file import OPENAI_PREFIX, REPLICATE_PREFIX
from imagefleet.producer.gateway.problems import Problem, wrong_field
from imagefleet.shared.text.printable import printable

PURPOSES: Final = ("batch", "vision", "user_data", "assistants", "fine-tune", "evals")
_LEAST_KEEP_S: Final = 3_600
_MAX_NAME: Final = 255
_MAX_METADATA_BYTES: Final = 10_000
_CONTENT_TYPE: Final = re.compile(r"[a-z]+/[A-Za-z0-9.+-]{1,100}")
_ANY_TYPE: Final = "application/octet-stream"
_LIMITS: Final = {"max_files": 1, "max_fields": 10, "max_part_size": 100_000}


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file as a caller sends it."""

    id: str
    """It is new, and its prefix says which API took the file."""
    name: str
    content: BufferedIOBase = field(repr=False)
    """It lies on the disk, unless it is small."""
    content_type: str
    purpose: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    keep_s: int | None = None
    """None: as long as the gateway keeps files."""


@asynccontextmanager
async def read_upload(request: Request, max_bytes: int, max_keep_s: int) -> AsyncIterator[Upload]:
    """Yield the upload in a request. Its content is closed then. Raises Problem."""
    try:
        async with request.form(**_LIMITS) as form:
            yield _parse(form, max_bytes, max_keep_s)
    except HTTPException as error:
        raise Problem(400, "invalid_form", f"the body is no form: {error.detail}") from None


def _parse(form: FormData, max_bytes: int, max_keep_s: int) -> Upload:
    field_name = "content" if "content" in form else "file"
    file = form.get(field_name)
    if not isinstance(file, UploadFile):
        limit = "must be a form with the file in the field `file`, or as Replicate has it `content`"
        raise wrong_field(field_name, None, limit)
    if (file.size or 0) > max_bytes:
        limit = f"must have at most {max_bytes:,} bytes"
        raise Problem(413, "body_too_large", f"{field_name}: {limit}", field=field_name)
    if not file.size:
        raise wrong_field(field_name, file.filename, "must not be empty; it has 0 bytes")
    content_type = file.content_type or _ANY_TYPE
    is_known = _CONTENT_TYPE.fullmatch(content_type)
    given: dict[str, Any] = {
        "name": printable(file.filename or "file", _MAX_NAME),
        "content": cast(BufferedIOBase, file.file),
        "content_type": content_type if is_known else _ANY_TYPE,
    }
    unique = uuid.uuid4().hex
    if field_name == "content":
        return Upload(id=REPLICATE_PREFIX + unique, metadata=_metadata(form), **given)
    purpose = form.get("purpose")
    if purpose not in PURPOSES:
        raise wrong_field("purpose", purpose, f"must be one of {', '.join(PURPOSES)}")
    keep_s = keep_seconds("expires_after[seconds]", form.get("expires_after[seconds]"), max_keep_s)
    return Upload(id=OPENAI_PREFIX + unique, purpose=str(purpose), keep_s=keep_s, **given)


def keep_seconds(field_name: str, given: object, max_keep_s: int) -> int | None:
    """Return for how many seconds a file is to be kept; None if the caller does not say.

    Raises Problem.
    """
    if given is None:
        return None
    text = str(given)
    if not re.fullmatch("[0-9]{1,9}", text) or not _LEAST_KEEP_S <= int(text) <= max_keep_s:
        limit = f"must be a whole number of seconds from {_LEAST_KEEP_S:,} to {max_keep_s:,}"
        raise wrong_field(field_name, given, limit)
    return int(text)


def _metadata(form: FormData) -> dict[str, Any]:
    """Return the `metadata` of an upload of Replicate's. Raises Problem."""
    text = form.get("metadata") or "{}"
    if isinstance(text, UploadFile):  # some clients send it as a part with a file name
        text = text.file.read(_MAX_METADATA_BYTES + 1).decode(errors="replace")
    try:
        metadata = json.loads(text) if len(text) <= _MAX_METADATA_BYTES else None
    except (ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, dict):
        limit = f"must be a JSON object of at most {_MAX_METADATA_BYTES:,} bytes"
        raise wrong_field("metadata", text[:80], limit)
    return metadata

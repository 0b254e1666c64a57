"""Write files as OpenAI's or Replicate's API does, by the API that took them.

https://platform.openai.com/docs/api-reference/files/object,
https://replicate.com/docs/reference/http#files
"""

from datetime import UTC, datetime
from typing import Any

from imagefleet.producer.gateway.files.stored_file import REPLICATE_PREFIX, StoredFile


def is_of_replicate(file: StoredFile) -> bool:
    """Return whether the file was uploaded as Replicate's API takes it."""
    return file.id.startswith(REPLICATE_PREFIX)


def file_body(file: StoredFile, base_url: str) -> dict[str, Any]:
    """Return a file in the form of its API.

    Args:
        base_url: that of the gateway, without a slash at its end.
    """
    if not is_of_replicate(file):
        return openai_file(file)
    return {
        "id": file.id,
        "name": file.name,
        "content_type": file.content_type,
        "size": file.size,
        "etag": file.sha256,
        "checksums": {"sha256": file.sha256},
        "metadata": file.metadata,
        "created_at": _iso(file.created_at),
        "expires_at": _iso(file.expires_at),
        "urls": {"get": f"{base_url}/v1/files/{file.id}"},
    }


def openai_file(file: StoredFile) -> dict[str, Any]:
    """Return a file in OpenAI's form."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created_at),
        "expires_at": int(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")

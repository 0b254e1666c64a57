"""Check the addresses in a job request: of callbacks, and of the images that jobs start from."""

from typing import Final
from urllib.parse import urlsplit

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.base import check_key

MAX_ADDRESS_CHARACTERS: Final = 2_048
_STORE_SCHEMES: Final = ("s3://", "gs://", "file://", "memory://")
_IMAGE_ADDRESSES: Final = (
    "an http(s) address, or the key or URL of an object in the fleet's store; the Python client "
    "also takes a pathlib.Path, bytes or a PIL image, and uploads it"
)


def check_http_url(url: str) -> str:
    """Return `url` if it is an http(s) address. Raises ValueError."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must be an http:// or https:// address in plain ASCII, without blanks")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.port == 0:  # `port` itself raises ValueError beyond 65535
        raise ValueError("must not name port 0")
    if len(url) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"must be at most {MAX_ADDRESS_CHARACTERS} characters")
    return url


def check_image_address(address: str, *, stored: bool) -> str:
    """Return `address` if a worker could read an image from it. Raises ValueError.

    Args:
        stored: release 0.1.0 may have accepted it, which accepted any text without blanks.
    """
    if address.startswith(("http://", "https://")):
        return check_http_url(address)
    if not address or not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError(f"must be {_IMAGE_ADDRESSES}")
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"must be at most {MAX_ADDRESS_CHARACTERS} characters")
    if not stored and not address.startswith(_STORE_SCHEMES):
        try:
            check_key(address)
        except InvalidRequest:
            raise ValueError(f"must be {_IMAGE_ADDRESSES}") from None
    return address

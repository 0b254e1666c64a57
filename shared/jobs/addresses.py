"""Check the addresses in a job request: of callbacks, and of what jobs start from."""

from typing import Final
from urllib.parse import urlsplit

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.base import check_key
from imagefleet.shared.storage.schemes import scheme_of

MAX_ADDRESS_CHARACTERS: Final = 2_048
_INPUT_ADDRESSES: Final = (
    "an http(s) address, or the key or URL of an object in the fleet's store; the Python client "
    "also takes {}, and uploads it"
)
IMAGE_OBJECTS: Final = "a pathlib.Path, bytes or a PIL image"
LATENTS_OBJECTS: Final = "a pathlib.Path or bytes"
"""What the Python client takes in the place of an address."""


def check_http_url(url: str, *, stored: bool = False) -> str:
    """Return `url` if it is an http(s) address to which workers send requests. Raises ValueError.

    Args:
        stored: it was accepted before, perhaps by an older release, which checked less.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("must be an http:// or https:// address in plain ASCII, without blanks")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.port == 0:  # `port` itself raises ValueError beyond 65535
        raise ValueError("must not name port 0")
    if len(url) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"must be at most {MAX_ADDRESS_CHARACTERS} characters")
    if not stored:
        if parts.username is not None or parts.password is not None:
            raise ValueError("must not carry a user or a password")
        try:
            parts.hostname.encode("idna")
        except UnicodeError:
            raise ValueError("must name a host whose labels have 1 to 63 characters") from None
    return url


def check_input_address(address: str, objects: str, *, stored: bool) -> str:
    """Return `address` if a worker could read what a job starts from there. Raises ValueError.

    Args:
        objects: what the Python client takes in its place.
        stored: release 0.1.0 may have accepted it, which accepted any text without blanks.
    """
    if address.startswith(("http://", "https://")):
        return check_http_url(address, stored=stored)
    if not address or not address.isascii() or not address.isprintable() or " " in address:
        raise ValueError(f"must be {_INPUT_ADDRESSES.format(objects)}")
    if len(address) > MAX_ADDRESS_CHARACTERS:
        raise ValueError(f"must be at most {MAX_ADDRESS_CHARACTERS} characters")
    if not stored and scheme_of(address) is None:
        try:
            check_key(address)
        except InvalidRequest:
            raise ValueError(f"must be {_INPUT_ADDRESSES.format(objects)}") from None
    return address

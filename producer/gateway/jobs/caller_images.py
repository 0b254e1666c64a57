"""Turn the images that a caller sends, or names, into what a job can start from.

A caller may send bytes or a `data:` URL, and name an http(s) address, an image that the gateway
gave to it, or a file that it uploaded. Keys of the store are refused: they would open images of
other tenants. The calls block.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.files.stored_file import OPENAI_PREFIX, REPLICATE_PREFIX
from imagefleet.producer.gateway.files.tenant_files import TenantFiles
from imagefleet.producer.gateway.jobs.addresses import ImageAddresses
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.addresses import check_input_address
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS, MAX_INPUT_BYTES
from imagefleet.shared.storage.job_keys import job_folder

_LIMIT: Final = (
    "must be an http(s) address, a data: URL with base64, a signed address of this gateway, or the "
    "id of a file"
)
_PADDING: Final = 2
"""So many `=` may stand at the end of base64."""
_PART: Final = 1 << 20
"""So many letters, a multiple of 4, are decoded while the interpreter's lock is held."""
_FILE: Final = re.compile(
    rf"(https?://[^\s?#]+/v1/files/)?(({OPENAI_PREFIX}|{REPLICATE_PREFIX})[A-Za-z0-9]+)"
)
"""It matches the id of a file, or its address, which clients of Replicate give as an input."""


class CallerImages:
    """Resolves what jobs start from."""

    def __init__(self, addresses: ImageAddresses, files: TenantFiles) -> None:
        self._addresses = addresses
        self._files = files

    def resolve(self, caller: Caller, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with bytes, http(s) addresses and keys that the caller may read.

        Raises Problem.
        """
        given = dict(parameters)
        for field in INPUT_FIELDS:
            if isinstance(given.get(field), str):
                given[field] = self.resolve_text(caller, field, given[field])
        return given

    def resolve_text(self, caller: Caller, field: str, address: str) -> str | bytes:
        """Return bytes, an http(s) address, or a key that the caller may read. Raises Problem."""
        if address.startswith("data:"):
            return decode_data_url(field, address)
        if signed := self._addresses.signed_image(address):
            job_id, file = signed
            return f"{job_folder(job_id)}/{file}"
        if _FILE.fullmatch(address):
            return self.read_file(caller, field, address)
        if address.startswith(("http://", "https://")):
            return address
        if caller.tenant is not None:
            raise wrong_field(field, address, _LIMIT)
        return _key_or_url(field, address)

    def read_file(self, caller: Caller, field: str, file_id: str) -> bytes:
        """Return the content of a file of the caller's, by its id or address. Raises Problem."""
        named = _FILE.fullmatch(file_id)
        if named is None:
            raise wrong_field(field, file_id, "must be the id of a file")
        stored = self._files.find(caller.tenant, named[2])
        return self._files.read(caller.tenant, stored, MAX_INPUT_BYTES)


def _key_or_url(field: str, address: str) -> str:
    """Return what may name an object of the fleet's store. Raises Problem."""
    try:
        return check_input_address(address, "", stored=False)
    except ValueError:
        limit = f"{_LIMIT}, or the key or URL of an object in the fleet's store"
        raise wrong_field(field, address, limit) from None


def decode_data_url(field: str, url: str) -> bytes:
    """Return the content of a `data:` URL (RFC 2397) in base64. Raises Problem."""
    comma = url.find(",")
    if not url.endswith(";base64", 0, max(comma, 0)):
        raise wrong_field(field, url[:80], _LIMIT)
    return decode_base64(field, url, comma + 1)


def decode_base64(field: str, text: str, begin: int = 0) -> bytes:
    """Return what a text in base64 holds, at most 20 MB. Raises Problem.

    Args:
        begin: where base64 begins in the text.
    """
    if len(text) - begin > MAX_INPUT_BYTES * 4 // 3 + 4:
        limit = f"must have at most {MAX_INPUT_BYTES:,} bytes"
        raise wrong_field(field, f"{len(text) - begin:,} letters", limit)
    if text.find("=", begin, len(text) - _PADDING) >= 0:
        raise wrong_field(field, text[begin : begin + 80], "must be base64")
    parts = (text[at : at + _PART] for at in range(begin, len(text), _PART))
    try:
        return b"".join(base64.b64decode(part, validate=True) for part in parts)
    except (binascii.Error, ValueError):
        raise wrong_field(field, text[begin : begin + 80], "must be base64") from None

"""Turn the images that a caller sends, or names, into what a job can start from.

A caller may send bytes or a `data:` URL, and name an http(s) address, or an image that the gateway
gave to it. Keys of the store are refused: they would open images of other tenants.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.gateway.access.caller import Caller
from imagefleet.producer.gateway.jobs.addresses import ImageAddresses
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.storage.job_keys import job_folder

INPUT_FIELDS: Final = ("image", "mask_image", "latents")
_LIMIT: Final = (
    "must be an http(s) address, a data: URL with base64, or a signed address of this gateway"
)


class CallerImages:
    """Resolves what jobs start from."""

    def __init__(self, addresses: ImageAddresses) -> None:
        self._addresses = addresses

    def resolve(self, caller: Caller, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with bytes, http(s) addresses and keys that the caller may read.

        Raises Problem.
        """
        given = dict(parameters)
        for field in INPUT_FIELDS:
            if isinstance(given.get(field), str):
                given[field] = self._resolve(caller, field, given[field])
        return given

    def _resolve(self, caller: Caller, field: str, address: str) -> str | bytes:
        if address.startswith("data:"):
            return decode_data_url(field, address)
        if signed := self._addresses.signed_image(address):
            job_id, file = signed
            return f"{job_folder(job_id)}/{file}"
        if address.startswith(("http://", "https://")) or caller.tenant is None:
            return address
        raise wrong_field(field, address, _LIMIT)


def decode_data_url(field: str, url: str) -> bytes:
    """Return the content of a `data:` URL (RFC 2397) in base64. Raises Problem."""
    head, comma, text = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise wrong_field(field, url[:80], _LIMIT)
    return decode_base64(field, text)


def decode_base64(field: str, text: str) -> bytes:
    """Return what a text in base64 holds, at most 20 MB. Raises Problem."""
    if len(text) > MAX_INPUT_BYTES * 4 // 3 + 4:
        limit = f"must have at most {MAX_INPUT_BYTES:,} bytes"
        raise wrong_field(field, f"{len(text):,} letters", limit)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise wrong_field(field, text[:80], "must be base64") from None

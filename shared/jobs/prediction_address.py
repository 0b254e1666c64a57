"""Spell the address that lets a worker send a prediction of an HTTP gateway as a callback.

    https://gateway.example/v1/predictions/<id>#key=<64 digits>&valid=<seconds>

Before the `#` it is the address of the prediction. `key` signs addresses of the images of this one
job, and of no other; `valid` says how long they open. So a worker needs neither the address of the
gateway nor the secret of the fleet, and a gateway may be gone when the job ends.
"""

import hashlib
import hmac
import re
import time
from dataclasses import dataclass
from typing import Annotated, Final, Self
from urllib.parse import urlencode

from pydantic import AfterValidator, StrictStr

from imagefleet.shared.jobs.addresses import check_http_url

IMAGE_PATH: Final = "/v1/images/{job_id}/{file}"
PREDICTIONS_PATH: Final = "/v1/predictions/"
_ADDRESS: Final = re.compile(
    r"(?P<base>https?://[^\s#?]+?)/v1/predictions/(?P<name>[A-Za-z0-9_.-]{1,128})"
    r"#key=(?P<key>[0-9a-f]{64})&valid=(?P<valid>[1-9][0-9]{0,6})"
)


@dataclass(frozen=True, kw_only=True)
class PredictionAddress:
    """The parts of such an address."""

    base_url: str
    """It is the gateway's, and has no slash at its end."""
    name: str
    """It is the id of the prediction."""
    key: str
    valid_s: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` has written. Raises ValueError."""
        found = _ADDRESS.fullmatch(text)
        if found is None:
            raise ValueError("must be an address that the HTTP gateway made for a prediction")
        base, name, key, valid = found.group("base", "name", "key", "valid")
        return cls(base_url=base, name=name, key=key, valid_s=int(valid))

    def __str__(self) -> str:
        return f"{self.url}#key={self.key}&valid={self.valid_s}"

    @property
    def url(self) -> str:
        """The address of the prediction."""
        return f"{self.base_url}{PREDICTIONS_PATH}{self.name}"

    def image_url(self, job_id: str, file: str) -> str:
        """Return an address of one image of the job, which opens from now on for `valid_s`.

        Args:
            job_id: the stored id.
            file: as in `0.png`.
        """
        path = IMAGE_PATH.format(job_id=job_id, file=file)
        return self.base_url + signed_path(self.key, path, self.valid_s)


def signature_of(key: str, path: str, expires: str) -> str:
    """Return the signature of a path of the gateway.

    Args:
        expires: Unix seconds.
    """
    return hmac.new(key.encode(), f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()


def signed_path(key: str, path: str, valid_s: int) -> str:
    """Return path and query of an address that opens for `valid_s` seconds from now on."""
    expires = str(int(time.time()) + valid_s)
    query = urlencode({"expires": expires, "signature": signature_of(key, path, expires)})
    return f"{path}?{query}"


def _check(text: str) -> str:
    check_http_url(PredictionAddress.parse(text).url)
    return text


PredictionAddressText = Annotated[StrictStr, AfterValidator(_check)]
"""A job's parameter has this type."""

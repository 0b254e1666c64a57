"""Sign addresses of the gateway, so that whoever has one can open that image or file for a while.

The signature is over path and expiry with the secret that the gateways of a fleet share. So an
address that one gateway made opens at each of them.
"""

import hmac
import re
import time
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from imagefleet.producer.gateway.access.fleet_secret import FleetSecret

IMAGE_PATH: Final = "/v1/images/{job_id}/{file}"
_IMAGE_ADDRESS: Final = re.compile(r"/v1/images/([A-Za-z0-9_.-]+)/([0-9]+\.[a-z]+)$")


class ImageAddresses:
    """Makes and checks addresses. Threads may share it."""

    def __init__(self, secret: FleetSecret, valid_s: int) -> None:
        """
        Args:
            valid_s: seconds for which an address opens without a key.
        """
        self._secret = secret
        self._valid_s = valid_s

    def sign(self, job_id: str, file: str) -> str:
        """Return path and query of the address of one image of a job.

        Args:
            job_id: the stored id.
            file: as in `0.png`.
        """
        return self.sign_path(IMAGE_PATH.format(job_id=job_id, file=file))

    def sign_path(self, path: str) -> str:
        """Return path and query of a signed address."""
        expires = str(int(time.time()) + self._valid_s)
        return f"{path}?{urlencode({'expires': expires, 'signature': self._sign(path, expires)})}"

    def is_valid(self, job_id: str, file: str, expires: str, signature: str) -> bool:
        """Return whether a gateway of this fleet signed this address, and it has not expired."""
        path = IMAGE_PATH.format(job_id=job_id, file=file)
        return self.is_valid_path(path, expires, signature)

    def is_valid_path(self, path: str, expires: str, signature: str) -> bool:
        """Return whether a gateway of this fleet signed this path, and it has not expired."""
        expected = self._sign(path, expires)
        is_ours = hmac.compare_digest(expected.encode(), signature.encode())
        return is_ours and expires.isdecimal() and int(expires) >= time.time()

    def signed_image(self, url: str) -> tuple[str, str] | None:
        """Return stored job id and file of an address that is signed and valid, else None."""
        try:
            parts = urlsplit(url)
            query = parse_qs(parts.query)
        except ValueError:
            return None
        found = _IMAGE_ADDRESS.search(parts.path)
        if found is None or not {"expires", "signature"} <= query.keys():
            return None
        job_id, file = found.groups()
        valid = self.is_valid(job_id, file, query["expires"][0], query["signature"][0])
        return (job_id, file) if valid else None

    def _sign(self, path: str, expires: str) -> str:
        return self._secret.sign(f"{path}\n{expires}")

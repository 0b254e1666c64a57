"""Sign addresses of the gateway, so that whoever has one can open that image or file for a while.

The signature is over path and expiry, with a key that follows from the secret that the gateways of
a fleet share. So an address that one gateway made opens at each of them. The images of each job
have a key of their own, with which a worker can sign for that job and for no other.
"""

import hmac
import re
import time
from typing import Final
from urllib.parse import parse_qs, urlsplit

from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.shared.jobs.prediction_address import (
    IMAGE_PATH,
    PredictionAddress,
    signature_of,
    signed_path,
)

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
        path = IMAGE_PATH.format(job_id=job_id, file=file)
        return signed_path(self._key_of_job(job_id), path, self._valid_s)

    def of_prediction(self, base_url: str, job_id: str, name: str) -> PredictionAddress:
        """Return the address by which workers show a job as a prediction.

        Args:
            base_url: that of the gateway, without a slash at its end.
            job_id: the stored id.
            name: the id as the caller knows it.
        """
        key = self._key_of_job(job_id)
        return PredictionAddress(base_url=base_url, name=name, key=key, valid_s=self._valid_s)

    def sign_path(self, path: str) -> str:
        """Return path and query of a signed address."""
        return signed_path(self._key_of_path(path), path, self._valid_s)

    def is_valid(self, job_id: str, file: str, expires: str, signature: str) -> bool:
        """Return whether a gateway of this fleet, or the job's worker, signed this address, and it
        has not expired."""
        path = IMAGE_PATH.format(job_id=job_id, file=file)
        return _is_valid(self._key_of_job(job_id), path, expires, signature)

    def is_valid_path(self, path: str, expires: str, signature: str) -> bool:
        """Return whether a gateway of this fleet signed this path, and it has not expired."""
        return _is_valid(self._key_of_path(path), path, expires, signature)

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

    def _key_of_job(self, job_id: str) -> str:
        return self._secret.sign(f"images of {job_id}")

    def _key_of_path(self, path: str) -> str:
        return self._secret.sign(f"path {path}")


def _is_valid(key: str, path: str, expires: str, signature: str) -> bool:
    is_ours = hmac.compare_digest(signature_of(key, path, expires).encode(), signature.encode())
    return is_ours and expires.isdecimal() and int(expires) >= time.time()

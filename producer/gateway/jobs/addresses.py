"""Sign the addresses of images, so that whoever has one can open that image for a while.

The signature is HMAC-SHA256 over path and expiry with a secret that the gateways of a fleet share
in Redis. So an address that one gateway made opens at each of them.
"""

import hashlib
import hmac
import re
import secrets
import time
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.redis_keys import address_secret_key

IMAGE_PATH: Final = "/v1/images/{job_id}/{file}"
_IMAGE_ADDRESS: Final = re.compile(r"/v1/images/([A-Za-z0-9_.-]+)/([0-9]+\.[a-z]+)$")
_SECRET_BYTES: Final = 32


class ImageAddresses:
    """Makes and checks addresses. Threads may share it."""

    def __init__(self, connection: Connection, valid_s: int) -> None:
        """
        Args:
            valid_s: seconds for which an address opens without a key.
        """
        self._connection = connection
        self._key = address_secret_key(connection.settings.namespace)
        self._valid_s = valid_s
        self._secret = b""

    def load_secret(self) -> None:
        """Read the secret from Redis; the first gateway of a fleet makes it.

        Raises BrokerUnavailable.
        """
        with self._connection.translate_errors():
            self._connection.redis.set(self._key, secrets.token_hex(_SECRET_BYTES), nx=True)
            self._secret = str(self._connection.redis.get(self._key)).encode()

    def sign(self, job_id: str, file: str) -> str:
        """Return path and query of the address of one image of a job.

        Args:
            job_id: the stored id.
            file: as in `0.png`.
        """
        path = IMAGE_PATH.format(job_id=job_id, file=file)
        expires = str(int(time.time()) + self._valid_s)
        return f"{path}?{urlencode({'expires': expires, 'signature': self._sign(path, expires)})}"

    def is_valid(self, job_id: str, file: str, expires: str, signature: str) -> bool:
        """Return whether a gateway of this fleet signed this address, and it has not expired."""
        expected = self._sign(IMAGE_PATH.format(job_id=job_id, file=file), expires)
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
        text = f"{path}\n{expires}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()

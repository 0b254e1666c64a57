"""Hold the secret that all gateways of a fleet share in Redis, and sign texts with it."""

import hashlib
import hmac
import secrets
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.redis_keys import address_secret_key

_SECRET_BYTES: Final = 32


class FleetSecret:
    """Signs texts, so that no caller can make the signature of another text. Threads may share
    it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._key = address_secret_key(connection.namespace)
        self._secret = b""

    def load(self) -> None:
        """Read the secret from Redis; the first gateway of a fleet makes it.

        Call it again from time to time. If Redis was emptied meanwhile, the first gateway that
        notices puts its own secret there, and all others take it. If it was restored, they take
        what it had.

        Raises BrokerUnavailable.
        """
        own = self._secret.decode() or secrets.token_hex(_SECRET_BYTES)
        redis = self._connection.redis
        with self._connection.translate_errors():
            while (stored := redis.get(self._key)) is None:  # it may be emptied at any moment
                redis.set(self._key, own, nx=True)
        self._secret = str(stored).encode()

    def sign(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text in hexadecimal. Call `load` before."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

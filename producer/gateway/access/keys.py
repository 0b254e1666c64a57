"""Create, find, list and revoke API keys in Redis.

A found key is trusted for two seconds before it is read again, so a key that is revoked opens
nothing two seconds later, at any gateway.
"""

import hmac
import json
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.api_key import (
    ApiKey,
    Scope,
    digest_of,
    id_in,
    key_text,
    new_id,
    new_secret,
    split_text,
)
from imagefleet.producer.gateway.redis_keys import api_keys_key, api_keys_used_key
from imagefleet.shared.errors import BrokerUnavailable, InvalidRequest
from imagefleet.shared.redis_client.wrong_type_keys import read_key
from imagefleet.shared.text.printable import printable

log = logging.getLogger(__name__)

CACHE_S: Final = 2.0
_MAX_CACHED: Final = 10_000
_NOTE_USE_EVERY_S: Final = 60.0
_NO_KEY: Final = ("", "")
"""These id and secret take the place of those of a text that has another form."""


class ApiKeys:
    """This class keeps the API keys of one namespace. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._redis = connection.redis
        self._key = api_keys_key(connection.namespace)
        self._used_key = api_keys_used_key(connection.namespace)
        self._cached: dict[str, tuple[float, ApiKey]] = {}
        self._noted: dict[str, float] = {}
        self._no_digest = digest_of(new_secret())

    def create(
        self,
        name: str,
        tenant: str,
        scopes: Collection[Scope],
        *,
        max_priority: int = 3,
        per_minute: int | None = None,
        images_per_day: int | None = None,
        expires_at: float | None = None,
    ) -> str:
        """Store a new key and return its text, which is kept nowhere.

        Args:
            name: what people recognize the key by.
            tenant: the tenant of all its jobs.
            max_priority: the highest priority, so the smallest number, that its jobs may have.
            per_minute: requests in any 60 seconds. None: no limit.
            images_per_day: images in one UTC day. None: no limit.
            expires_at: Unix seconds from which on it is refused. None: it does not expire.

        Raises:
            InvalidRequest: an argument is wrong; the error names it, its value and the limit.
            BrokerUnavailable: Redis does not answer, or takes no writes.
        """
        now, secret = time.time(), new_secret()
        fields = {
            "name": name,
            "tenant": tenant,
            "scopes": tuple(scope for scope in Scope if scope in scopes),
            "max_priority": max_priority,
            "per_minute": per_minute,
            "images_per_day": images_per_day,
            "expires_at": expires_at,
        }
        _check_rights(fields, scopes, now)
        while True:
            key = _parse_fields({**fields, "created_at": now, "digest": digest_of(secret)})
            with self._connection.translate_errors():
                if self._redis.hsetnx(self._key, key.id, key.model_dump_json()):
                    return key_text(key.id, secret)

    def find(self, text: str) -> ApiKey | None:
        """Return the key that this text is; None if it is none, or has expired or is revoked.

        Raises:
            BrokerUnavailable: Redis does not answer.
        """
        key = self.identify(text)
        return key if key is not None and key.is_valid_at(time.time()) else None

    def identify(self, text: str) -> ApiKey | None:
        """Return the key that this text is, also if it has expired or is revoked; None if it is
        none.

        Every text costs one digest and one comparison in constant time, whatever it is.

        Raises:
            BrokerUnavailable: Redis does not answer.
        """
        key_id, secret = split_text(text) or _NO_KEY
        key = self._read(key_id)
        stored = self._no_digest if key is None else key.digest
        is_right = hmac.compare_digest(digest_of(secret), stored)
        if key is None or not is_right:
            return None
        if key.is_valid_at(now := time.time()):
            self._note_use(key_id, now)
        return key

    def list(self) -> list[ApiKey]:
        """Return all keys, also those that have expired or are revoked, the oldest first."""
        texts = self._read_all(self._key)
        keys = filter(None, (_parse(key_id, text) for key_id, text in texts.items()))
        return sorted(keys, key=lambda key: (key.created_at, key.id))

    def last_uses(self) -> dict[str, float]:
        """Return when each key was used last, in Unix seconds, exact to a minute."""
        return dict(_readable_times(self._read_all(self._used_key)))

    def revoke(self, key: str) -> ApiKey:
        """Revoke a key for ever. Return it as it is now; a key that was revoked stays as it was.

        Args:
            key: its id, or its text.

        Raises:
            InvalidRequest: no readable key has this id.
            BrokerUnavailable: Redis does not answer, or takes no writes.
        """
        key_id = id_in(key)
        with self._connection.translate_errors():
            text = read_key(self._redis, lambda pipe: pipe.hget(self._key, key_id))
            found = None if text is None else _parse(key_id, text)
            if found is None:
                limit = "is the id of no key; `imagefleet keys list` shows all"
                raise InvalidRequest("id", key_id, limit)
            if found.revoked_at is None:
                # The fields of newer releases stay.
                fields = {**json.loads(text), "revoked_at": time.time()}
                found = ApiKey.model_validate(fields)
                self._redis.hset(self._key, key_id, json.dumps(fields))
        self._cached.pop(key_id, None)
        return found

    def _read(self, key_id: str) -> ApiKey | None:
        """Return the record with this id, at most `CACHE_S` old; None if there is none."""
        read_at, key = self._cached.get(key_id, (float("-inf"), None))
        now = time.monotonic()
        if key is not None and now - read_at < CACHE_S:
            return key
        if not key_id:
            return None
        with self._connection.translate_errors():
            text = read_key(self._redis, lambda pipe: pipe.hget(self._key, key_id))
        key = None if text is None else _parse(key_id, text)
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        if key is None:
            self._cached.pop(key_id, None)
        else:
            self._cached[key_id] = now, key
        return key

    def _read_all(self, name: str) -> dict[str, str]:
        with self._connection.translate_errors():
            return read_key(self._redis, lambda pipe: pipe.hgetall(name)) or {}

    def _note_use(self, key_id: str, now: float) -> None:
        """Note in Redis that a key is used, once a minute."""
        if now - self._noted.get(key_id, 0.0) < _NOTE_USE_EVERY_S:
            return
        if len(self._noted) >= _MAX_CACHED:
            self._noted.clear()
        self._noted[key_id] = now
        with suppress(BrokerUnavailable), self._connection.translate_errors():
            self._redis.hset(self._used_key, key_id, int(now))  # nobody is refused for it


def _parse(key_id: str, text: str) -> ApiKey | None:
    """Return the key of a record; None if it is damaged, which a warning says."""
    try:
        key = ApiKey.model_validate_json(text)
    except ValidationError:
        key = None
    if key is None or key.id != key_id:
        log.warning("the API key %s in Redis is damaged and refused", printable(key_id, 40))
        return None
    return key


def _parse_fields(fields: Mapping[str, Any]) -> ApiKey:
    """Return a new key with these fields. Raise InvalidRequest for the first that is wrong."""
    try:
        return ApiKey.model_validate({"id": new_id(), **fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = str(first["loc"][0])
        limit = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
        raise InvalidRequest(field, fields[field], limit) from None


def _check_rights(fields: Mapping[str, Any], scopes: Collection[Scope], now: float) -> None:
    """Raise InvalidRequest for a key that could do nothing."""
    if not scopes or len(fields["scopes"]) < len(set(scopes)):
        names = ", ".join(Scope)
        raise InvalidRequest("scopes", list(scopes), f"must be one or more of {names}")
    expires_at = fields["expires_at"]
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest("expires_at", expires_at, "must be in the future")


def _readable_times(texts: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield the times that can be read; anybody may have written others."""
    for key_id, text in texts.items():
        if text.isascii() and text.isdecimal() and len(text) < 12:
            yield key_id, float(text)

"""Keep the files of callers in the fleet's store, each for its tenant, until they expire.

Records lie in Redis: one hash for each tenant. The folder of a tenant is named by a digest with the
secret of the fleet, so nobody else can name a key in it. To a caller the files of other tenants do
not exist. The calls block.
"""

import time
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any, Final, cast

from pydantic import ValidationError

from imagefleet.producer.connection.connection import Connection
from imagefleet.producer.gateway.access.fleet_secret import FleetSecret
from imagefleet.producer.gateway.files.due_times import DueTimes
from imagefleet.producer.gateway.files.stored_file import StoredFile
from imagefleet.producer.gateway.problems import Problem, unknown
from imagefleet.producer.gateway.redis_keys import files_expiring_key, files_key
from imagefleet.shared.redis_client.wrong_type_keys import read_key
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.job_keys import upload_key

MAX_FILES: Final = 10_000
"""Files that one tenant may have at the same time."""
_FOLDER_CHARACTERS: Final = 32
_UPLOAD_S: Final = 3_600.0
"""Seconds after which the object of an upload that nobody recorded is deleted."""
_CLAIM_S: Final = 60.0
PART_BYTES: Final = 4 << 20
"""A file is read in parts of so many bytes."""


def tenant_folder(secret: FleetSecret, tenant: str | None) -> str:
    """Return the name of the folder of a tenant, which nobody else can guess."""
    return secret.sign(f"folder\n{tenant or ''}")[:_FOLDER_CHARACTERS]


class TenantFiles:
    """Stores, lists and deletes the files of all tenants. Threads may share it."""

    def __init__(self, connection: Connection, secret: FleetSecret, keep_s: int) -> None:
        """
        Args:
            keep_s: seconds for which a file is kept whose owner says nothing else.
        """
        self._connection = connection
        self._secret = secret
        self._keep_s = keep_s
        self._namespace = connection.namespace
        self._expiring = DueTimes(connection, files_expiring_key(self._namespace), _CLAIM_S)

    def save(
        self,
        tenant: str | None,
        content: BufferedIOBase,
        *,
        id: str,
        name: str,
        content_type: str,
        purpose: str = "",
        metadata: dict[str, Any] | None = None,
        keep_s: int | None = None,
    ) -> StoredFile:
        """Store a file, from its beginning, and return its record.

        Raises:
            Problem: 409 if the tenant has too many files.
            BrokerUnavailable, ConfigurationError, StorageDenied, StorageUnavailable.
        """
        folder = self._folder(tenant)
        with self._connection.translate_errors():
            if self._connection.redis.hlen(files_key(self._namespace, folder)) >= MAX_FILES:
                message = f"there are {MAX_FILES:,} files already; delete some"
                raise Problem(409, "too_many_files", message)
        member = f"{folder}/{id}"
        self._expiring.put(member, _UPLOAD_S)
        stored = self._store().put_file(upload_key(folder, id), content, content_type)
        now, keep_s = time.time(), self._keep_s if keep_s is None else keep_s
        file = StoredFile(
            id=id,
            name=name,
            purpose=purpose,
            content_type=content_type,
            size=stored.size,
            sha256=stored.sha256,
            metadata=metadata or {},
            created_at=now,
            expires_at=now + keep_s,
        )
        key, record = files_key(self._namespace, folder), file.model_dump_json()
        self._expiring.put(member, keep_s, lambda pipe: pipe.hset(key, id, record))
        return file

    def find(self, tenant: str | None, file_id: str) -> StoredFile:
        """Return the record of a file. Raises Problem (404), BrokerUnavailable."""
        key = files_key(self._namespace, self._folder(tenant))
        with self._connection.translate_errors():
            text = read_key(self._connection.redis, lambda pipe: pipe.hget(key, file_id))
        file = _parse(cast(str | None, text))
        if file is None:
            raise unknown("file", file_id)
        return file

    def list(self, tenant: str | None) -> list[StoredFile]:
        """Return all files of a tenant, the newest first. Raises BrokerUnavailable."""
        key = files_key(self._namespace, self._folder(tenant))
        with self._connection.translate_errors():
            texts = read_key(self._connection.redis, lambda pipe: pipe.hvals(key)) or []
        files = filter(None, map(_parse, texts))
        return sorted(files, key=lambda file: (file.created_at, file.id), reverse=True)

    def delete(self, tenant: str | None, file_id: str) -> None:
        """Delete a file. Raises Problem (404), and what `save` raises."""
        self.find(tenant, file_id)
        self._delete(self._folder(tenant), file_id)

    def delete_expired(self) -> bool:
        """Delete one file that has expired, if there is one. Return whether there was.

        Raises what `save` raises.
        """
        member = self._expiring.claim()
        if member is None:
            return False
        folder, _, file_id = member.partition("/")
        self._delete(folder, file_id)
        return True

    def read(self, tenant: str | None, file: StoredFile, max_bytes: int) -> bytes:
        """Return the content of a file. Raises InvalidRequest if it is larger than `max_bytes`."""
        key = upload_key(self._folder(tenant), file.id)
        try:
            return self._store().get(key, max_bytes)
        except KeyError:
            raise unknown("file", file.id) from None

    def copy(self, tenant: str | None, file: StoredFile, target: Any) -> None:
        """Write the content of a file to another one. Raises Problem (404) if it is gone."""
        try:
            self._store().get_file(upload_key(self._folder(tenant), file.id), target)
        except KeyError:
            raise unknown("file", file.id) from None

    def parts(self, tenant: str | None, file: StoredFile) -> Iterator[bytes]:
        """Yield the content of a file in parts, each of which one thread may read."""
        store, key = self._store(), upload_key(self._folder(tenant), file.id)
        return parts_of(store, key, file.size)

    def _delete(self, folder: str, file_id: str) -> None:
        with self._connection.translate_errors():
            self._connection.redis.hdel(files_key(self._namespace, folder), file_id)
        self._store().delete(upload_key(folder, file_id))
        self._expiring.forget(f"{folder}/{file_id}")

    def _folder(self, tenant: str | None) -> str:
        return tenant_folder(self._secret, tenant)

    def _store(self) -> ObjectStore:
        return self._connection.store()


def parts_of(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    """Yield the content of an object in parts. Raises KeyError if it does not exist."""
    at = 0
    while at < size:
        part = store.get_range(key, at, min(PART_BYTES, size - at))
        if not part:
            raise KeyError(key)
        yield part
        at += len(part)


def _parse(text: str | None) -> StoredFile | None:
    """Return a record; None if it is missing or damaged, or if the file has expired."""
    if text is None:
        return None
    try:
        file = StoredFile.model_validate_json(text)
    except ValidationError:
        return None
    return file if file.expires_at > time.time() else None

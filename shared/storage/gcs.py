"""Store objects in a bucket of Google Cloud Storage.

Only this module uses google-cloud-storage. That library finds the credentials by itself
(application-default credentials: workload identity, the service account of a host, a key file);
this module never reads them. Every put sends its CRC-32C, which the server compares with the data
that arrived, and every object that is read whole is compared with the server's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import BufferedIOBase
from typing import Any, BinaryIO, Final

from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound, RetryError
from google.auth.exceptions import (
    DefaultCredentialsError,
    GoogleAuthError,
    RefreshError,
    TransportError,
)
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from requests import RequestException
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from imagefleet.shared.errors import (
    ConfigurationError,
    ImagefleetError,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.storage.base import (
    KeyCheck,
    StoredObject,
    always,
    check_expires,
    check_key,
    check_round_trip,
    check_size,
    delete_each,
    describe_file,
    describe_object,
)

_CHECKSUM: Final = "crc32c"
_CONNECTIONS: Final = 64
_MIN_RETRY_DELAY_S: Final = 0.2
_MAX_RETRY_DELAY_S: Final = 5.0
_NO_BUCKET: Final = "bucket does not exist"
"""The server says so in the text of a 404, whose code is that of a missing object."""
_PROJECT: Final = "none"
"""Reading and writing objects needs no project; the library fails without a name of one."""
_RIGHTS: Final = {
    "put": "storage.objects.create and, to replace an object, storage.objects.delete",
    "get": "storage.objects.get",
    "check": "storage.objects.get",
    "list": "storage.objects.list",
    "delete": "storage.objects.delete",
}
"""The permissions that each action needs."""
_TEMPORARY_STATUSES: Final = frozenset({408, 412, 429})
"""412: the object was replaced between two requests."""
_UNANSWERED: Final = (RequestException, HTTPError, RetryError, DataCorruption, OSError)


class GcsStore:
    """This store keeps its objects under `prefix` in `bucket`. Threads may share it."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        timeout_s: float = 20.0,
        retry_s: float = 20.0,
        key_check: KeyCheck = check_key,
    ) -> None:
        """Find the credentials.

        Args:
            timeout_s: how long the server may keep silent.
            retry_s: how long failures that may pass are retried; 0: not at all.
            key_check: which keys it takes. Only a store that is not written to takes any.

        Raises:
            ConfigurationError: there are none, or the prefix is wrong.
        """
        self._key_check = key_check
        self._prefix = f"{check_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self.url = f"gs://{bucket}/{self._prefix}"
        with self._translate_errors("open", ""):
            self._client = Client(project=_PROJECT)
            self._bucket = self._client.bucket(bucket)
        for scheme in ("https://", "http://"):
            self._client._http.mount(scheme, HTTPAdapter(pool_maxsize=_CONNECTIONS))
        retry = DEFAULT_RETRY.with_timeout(retry_s).with_delay(
            _MIN_RETRY_DELAY_S, _MAX_RETRY_DELAY_S
        )
        self._options: dict[str, Any] = {
            "timeout": (min(5.0, timeout_s), timeout_s),
            "retry": retry if retry_s else None,
        }

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        description = describe_object(self.url, key, data)
        with self._translate_errors("put", key):
            self._blob(key).upload_from_string(
                data, content_type=content_type, checksum=_CHECKSUM, **self._options
            )
        return description

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        description = describe_file(self.url, key, source)
        with self._translate_errors("put", key):
            self._blob(key).upload_from_file(
                source,
                size=description.size,
                content_type=content_type,
                checksum=_CHECKSUM,
                **self._options,
            )
        return description

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        with self._reading(key):
            blob, generation = self._blob(key), None
            if max_bytes is not None:
                blob.reload(**self._options)
                check_size(key, blob.size, max_bytes)
                generation = blob.generation
            data: bytes = blob.download_as_bytes(if_generation_match=generation, **self._options)
            return data

    def get_file(self, key: str, target: BinaryIO) -> None:
        with self._reading(key):
            self._blob(key).download_to_file(target, **self._options)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._reading(key):
            data: bytes = self._blob(key).download_as_bytes(
                start=start, end=start + length - 1, checksum=None, **self._options
            )
            return data

    def exists(self, key: str) -> bool:
        with self._translate_errors("check", key):
            return bool(self._blob(key).exists(**self._options))

    def list(self, prefix: str = "") -> Iterator[str]:
        with self._translate_errors("list", prefix):
            for blob in self._client.list_blobs(
                self._bucket,
                prefix=self._prefix + prefix,
                fields="items(name),nextPageToken",
                **self._options,
            ):
                yield blob.name.removeprefix(self._prefix)

    def delete(self, key: str) -> None:
        with self._translate_errors("delete", key):
            try:
                self._blob(key).delete(**self._options)
            except NotFound as error:
                if _NO_BUCKET in str(error):
                    raise

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        delete_each(self, folder, may_delete)

    def presigned_url(self, key: str, expires_s: int) -> str:
        check_expires(expires_s)
        blob = self._blob(key)
        try:
            url: str = blob.generate_signed_url(
                version="v4", expiration=timedelta(seconds=expires_s)
            )
        except AttributeError:  # what the library raises
            raise ConfigurationError(
                f"{self.url}: cannot sign {key}: these credentials have no private key; set "
                "GOOGLE_APPLICATION_CREDENTIALS to the key file of a service account"
            ) from None
        return url

    def check(self) -> None:
        check_round_trip(self)

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._prefix + self._key_check(key))

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        """Raise KeyError if the object does not exist, and our errors."""
        with self._translate_errors("get", key):
            try:
                yield
            except NotFound as error:
                if _NO_BUCKET in str(error):
                    raise
                raise KeyError(key) from None

    @contextmanager
    def _translate_errors(self, action: str, key: str) -> Iterator[None]:
        """Map the library's errors inside the block to ours."""
        where = f"{self.url}: cannot {action} {key}".rstrip()
        try:
            yield
        except GoogleAPICallError as error:
            raise _error_from_response(error, where, _RIGHTS.get(action, "")) from error
        except InvalidResponse as error:  # of some uploads; its response has the status
            raise _error_of_status(error.response.status_code, where) from error
        except DefaultCredentialsError as error:
            raise ConfigurationError(
                f"{where}: credentials are missing; run on a host with a service account, or set "
                "GOOGLE_APPLICATION_CREDENTIALS to a key file"
            ) from error
        except TransportError as error:
            raise StorageUnavailable(f"{where}: {error}") from error
        except GoogleAuthError as error:
            if _may_pass(error):
                raise StorageUnavailable(f"{where}: no token: {error}") from error
            raise StorageDenied(f"{where}: the credentials are refused: {error}") from error
        except _UNANSWERED as error:
            raise StorageUnavailable(f"{where}: {error}") from error


def _may_pass(error: GoogleAuthError) -> bool:
    """Return whether the server of tokens was away, as the metadata server of a host may be."""
    return isinstance(error, RefreshError) and (
        error.retryable or isinstance(error.__cause__, TransportError)
    )


def _error_from_response(error: GoogleAPICallError, where: str, rights: str) -> ImagefleetError:
    """Decide whether the same request, which needs `rights`, may succeed later."""
    if isinstance(error, NotFound):
        return StorageDenied(f"{where}: there is no such bucket; create it, or correct the address")
    if isinstance(error, Forbidden):
        return StorageDenied(f"{where}: these credentials lack the permission {rights}")
    return _error_of_status(error.code or 500, where)


def _error_of_status(status: int, where: str) -> ImagefleetError:
    kind = StorageUnavailable if status >= 500 or status in _TEMPORARY_STATUSES else StorageDenied
    return kind(f"{where}: the server answers {status}")

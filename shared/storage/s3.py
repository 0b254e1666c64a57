"""Store objects in an S3 bucket, of AWS or of any server with the same protocol.

Only this module uses boto3. boto3 takes the credentials from the usual AWS environment (variables,
profile, instance role); this module never reads them. Every put sends its SHA-256, which the server
compares with the data that arrived.
"""

import base64
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import BufferedIOBase
from typing import Any, BinaryIO, Final

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)

from imagefleet.shared.errors import (
    ConfigurationError,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.storage.base import (
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

_BUFFER_BYTES: Final = 1 << 20
_MAX_PUT_BYTES: Final = 1 << 30
"""Larger files are uploaded in parts. S3 takes at most 5 GiB in one request."""
_PART_BYTES: Final = 64 << 20
"""S3 takes at most 10,000 parts, which are 625 GiB."""
_MISSING_CODES: Final = frozenset({"NoSuchKey", "404"})
_TEMPORARY_CODES: Final = frozenset(
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
)
"""The status of these answers is 4xx, yet the same put may succeed later."""
_DENIED_REASONS: Final = {
    "NoSuchBucket": "there is no such bucket; create it, or correct IMAGEFLEET_STORAGE_URL",
    "InvalidAccessKeyId": "the server does not know the access key; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "RequestTimeTooSkewed": "this host's clock is wrong by more than 15 minutes",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION",
}
_ACCESS_DENIED_CODES: Final = frozenset({"AccessDenied", "403"})
"""The answer to a HEAD request has no body, so its code is the status."""
_RIGHTS: Final = {
    "put": "PutObject",
    "get": "GetObject",
    "check": "GetObject",
    "list": "ListBucket",
    "delete": "DeleteObject",
}
"""The right that each action needs."""
_INSUFFICIENT_STORAGE: Final = 507
_TEMPORARY_STATUSES: Final = frozenset({408, 409, 425, 429})


class S3Store:
    """This store keeps its objects under `prefix` in `bucket`. Threads may share it."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        timeout_s: float = 20.0,
        attempts: int = 3,
    ) -> None:
        self._bucket = bucket
        self._prefix = f"{check_key(prefix.strip('/'))}/" if prefix.strip("/") else ""
        self.url = f"s3://{bucket}/{self._prefix}"
        self._client = _client(endpoint_url, region, timeout_s, attempts)

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        description = describe_object(self.url, key, data)
        self._put(description, data, content_type)
        return description

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        description = describe_file(self.url, key, source)
        if description.size <= _MAX_PUT_BYTES:
            self._put(description, source, content_type)
        else:
            self._upload_in_parts(description, source, content_type)
        return description

    def _upload_in_parts(
        self, target: StoredObject, source: BufferedIOBase, content_type: str
    ) -> None:
        """Upload a large file; its object appears whole, with the last part."""
        with self._translate_errors("put", target.key):
            self._client.upload_fileobj(
                source,
                self._bucket,
                self._prefix + target.key,
                ExtraArgs={"ContentType": content_type, "ChecksumAlgorithm": "SHA256"},
                Config=TransferConfig(
                    multipart_threshold=_PART_BYTES,
                    multipart_chunksize=_PART_BYTES,
                    use_threads=False,
                ),
            )

    def _put(self, target: StoredObject, body: bytes | BufferedIOBase, content_type: str) -> None:
        with self._translate_errors("put", target.key):
            self._client.put_object(
                **self._location(target.key),
                Body=body,
                ContentType=content_type,
                ChecksumSHA256=base64.b64encode(bytes.fromhex(target.sha256)).decode(),
            )

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        with self._open(key) as answer:
            return _read_body(answer["Body"], key, answer.get("ContentLength"), max_bytes)

    def get_file(self, key: str, target: BinaryIO) -> None:
        with self._open(key) as answer:
            for data in answer["Body"].iter_chunks(_BUFFER_BYTES):
                target.write(data)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._open(key, Range=f"bytes={start}-{start + length - 1}") as answer:
            data: bytes = answer["Body"].read()
            return data

    @contextmanager
    def _open(self, key: str, **options: str) -> Iterator[dict[str, Any]]:
        """Open an object for reading. Raise KeyError if it does not exist."""
        with self._translate_errors("get", key):
            try:
                answer = self._client.get_object(**self._location(key), **options)
            except ClientError as error:
                if _error_code(error) in _MISSING_CODES:
                    raise KeyError(key) from None
                raise
            with closing(answer["Body"]):
                yield answer

    def exists(self, key: str) -> bool:
        with self._translate_errors("check", key):
            try:
                self._client.head_object(**self._location(key))
            except ClientError as error:
                if _error_code(error) in _MISSING_CODES:
                    return False
                raise
            return True

    def list(self, prefix: str = "") -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._translate_errors("list", prefix):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    yield entry["Key"].removeprefix(self._prefix)

    def delete(self, key: str) -> None:
        with self._translate_errors("delete", key):
            self._client.delete_object(**self._location(key))

    def delete_below(self, folder: str, may_delete: Callable[[], bool] = always) -> None:
        delete_each(self, folder, may_delete)

    def presigned_url(self, key: str, expires_s: int) -> str:
        check_expires(expires_s)
        with self._translate_errors("sign", key):
            url: str = self._client.generate_presigned_url(
                "get_object", Params=self._location(key), ExpiresIn=expires_s
            )
        return url

    def check(self) -> None:
        check_round_trip(self)

    def _location(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    @contextmanager
    def _translate_errors(self, action: str, key: str) -> Iterator[None]:
        """Map botocore's errors inside the block to ours."""
        where = f"{self.url}: cannot {action} {key}"
        try:
            yield
        except ClientError as error:
            raise _error_from_response(error, where, _RIGHTS.get(action, "")) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                f"{where}: credentials are missing; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except (ParamValidationError, NoRegionError) as error:
            raise ConfigurationError(f"{where}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise StorageUnavailable(f"{where}: {error}") from error


def _client(endpoint_url: str | None, region: str | None, timeout_s: float, attempts: int) -> Any:
    config = Config(
        connect_timeout=min(5.0, timeout_s),
        read_timeout=timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=64,
        tcp_keepalive=True,
        # We send a SHA-256. The default would add a CRC32, which not every server accepts.
        request_checksum_calculation="when_required",
        s3={"addressing_style": "path" if endpoint_url else "auto"},
        signature_version="s3v4",  # boto3 would sign presigned addresses by version 2
    )
    try:
        session = boto3.session.Session()
        return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    except (ValueError, ProfileNotFound, BotoCoreError) as error:
        raise ConfigurationError(f"IMAGEFLEET_STORAGE_URL: {error}") from error


def _read_body(body: Any, key: str, announced: int | None, max_bytes: int | None) -> bytes:
    """Read an object, but nothing of one that announces more than `max_bytes`."""
    check_size(key, announced or 0, max_bytes)
    data: bytes
    if announced is not None or max_bytes is None:
        data = body.read()  # raises an error if fewer bytes arrive than were announced
    else:
        data = body.read(max_bytes + 1)
        check_size(key, len(data), max_bytes)
    return data


def _error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _error_from_response(
    error: ClientError, where: str, right: str
) -> StorageDenied | StorageUnavailable:
    """Decide whether the same request, which needs `right`, may succeed later."""
    code = _error_code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _DENIED_REASONS:
        return StorageDenied(f"{where}: {_DENIED_REASONS[code]}")
    if code in _ACCESS_DENIED_CODES:
        return StorageDenied(f"{where}: these credentials lack the right {right}")
    if status == _INSUFFICIENT_STORAGE:
        return StorageDenied(f"{where}: the store is full")
    if status >= 500 or status in _TEMPORARY_STATUSES or code in _TEMPORARY_CODES:
        return StorageUnavailable(f"{where}: the server answers {status} {code}")
    return StorageDenied(f"{where}: the server answers {status} {code}")

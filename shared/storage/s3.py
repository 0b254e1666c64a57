"""An object store in an S3 bucket: AWS, or anything that speaks its protocol behind an endpoint.

The only module that knows boto3. Credentials come from the normal AWS environment (variables,
profile, instance role) and are never read here. Every put carries its SHA-256, which the server
compares with what arrived.
"""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from typing import Any, Final

import boto3
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

from imagefleet.shared.errors import ConfigurationError, StorageDenied, StorageUnavailable
from imagefleet.shared.storage.base import (
    StoredObject,
    check_key,
    delete_each,
    prove,
    stored,
    stored_file,
)

_MISSING: Final = frozenset({"NoSuchKey", "404"})
_PASSING: Final = frozenset(
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
)
"""Answered with a 4xx, yet the same put may succeed."""
_WHY_DENIED: Final = {
    "NoSuchBucket": "there is no such bucket; create it, or correct IMAGEFLEET_STORAGE_URL",
    "InvalidAccessKeyId": "the access key is unknown there; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY",
    "AccessDenied": "these credentials may not do that; they need PutObject and GetObject",
    "ExpiredToken": "the session token has expired; renew the credentials",
    "RequestTimeTooSkewed": "this host's clock is wrong by more than 15 minutes",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION",
}
_INSUFFICIENT_STORAGE: Final = 507
_PASSING_STATUS: Final = frozenset({408, 409, 425, 429})


class S3Store:
    """Objects under `prefix` in `bucket`. Safe to share between threads."""

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
        done = stored(self.url, key, data)
        self._put(done, data, content_type)
        return done

    def put_file(self, key: str, source: BufferedIOBase, content_type: str) -> StoredObject:
        done = stored_file(self.url, key, source)
        self._put(done, source, content_type)
        return done

    def _put(self, done: StoredObject, body: bytes | BufferedIOBase, content_type: str) -> None:
        with self._clear_errors(f"put {done.key}"):
            self._client.put_object(
                **self._at(done.key),
                Body=body,
                ContentType=content_type,
                ChecksumSHA256=base64.b64encode(bytes.fromhex(done.sha256)).decode(),
            )

    def get(self, key: str) -> bytes:
        with self._clear_errors(f"get {key}"):
            try:
                answer = self._client.get_object(**self._at(key))
            except ClientError as error:
                if _code(error) in _MISSING:
                    raise KeyError(key) from None
                raise
            data: bytes = answer["Body"].read()
            return data

    def exists(self, key: str) -> bool:
        with self._clear_errors(f"look at {key}"):
            try:
                self._client.head_object(**self._at(key))
            except ClientError as error:
                if _code(error) in _MISSING:
                    return False
                raise
            return True

    def list(self, prefix: str = "") -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._clear_errors(f"list {prefix}"):
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for entry in page.get("Contents", ()):
                    yield entry["Key"].removeprefix(self._prefix)

    def delete(self, key: str) -> None:
        with self._clear_errors(f"delete {key}"):
            self._client.delete_object(**self._at(key))

    def delete_below(self, folder: str) -> None:
        delete_each(self, folder)

    def check(self) -> None:
        prove(self)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + check_key(key)}

    @contextmanager
    def _clear_errors(self, what: str) -> Iterator[None]:
        """The seam: below it botocore's errors, above it ours."""
        where = f"{self.url}: cannot {what}"
        try:
            yield
        except ClientError as error:
            raise _answered(error, where) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                f"{where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
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
        # One checksum, ours; the default would add a CRC32 that not every server takes.
        request_checksum_calculation="when_required",
        s3={"addressing_style": "path" if endpoint_url else "auto"},
    )
    try:
        session = boto3.session.Session()
        return session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
    except (ValueError, ProfileNotFound, BotoCoreError) as error:
        raise ConfigurationError(f"IMAGEFLEET_STORAGE_URL: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _answered(error: ClientError, where: str) -> StorageDenied | StorageUnavailable:
    """The server spoke: will the same words be heard later?"""
    code = _code(error)
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _WHY_DENIED:
        return StorageDenied(f"{where}: {_WHY_DENIED[code]}")
    if status == _INSUFFICIENT_STORAGE:
        return StorageDenied(f"{where}: the store is full")
    if status >= 500 or status in _PASSING_STATUS or code in _PASSING:
        return StorageUnavailable(f"{where}: the server answers {status} {code}")
    return StorageDenied(f"{where}: the server answers {status} {code}")

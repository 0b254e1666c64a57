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
from imagefleet.shared.storage.s3_errors import error_from_answer, first_line, is_missing

_BUFFER_BYTES: Final = 1 << 20
_MAX_PUT_BYTES: Final = 1 << 30
"""Larger files are uploaded in parts. S3 takes at most 5 GiB in one request."""
_PART_BYTES: Final = 64 << 20
"""S3 takes at most 10,000 parts, which are 625 GiB."""
_READS: Final = frozenset({"get", "check"})
"""Actions that may find that there is no such object."""


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
        key_check: KeyCheck = check_key,
    ) -> None:
        """
        Args:
            key_check: which keys it takes. Only a store that is not written to takes any.
        """
        self._key_check = key_check
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
            data: bytes = answer["Body"].read(length + 1)
        if len(data) > length:
            raise StorageDenied(f"{self.url}: cannot get a part of {key}: the server sends more")
        return data

    @contextmanager
    def _open(self, key: str, **options: str) -> Iterator[dict[str, Any]]:
        """Open an object for reading. Raise KeyError if it does not exist."""
        with self._translate_errors("get", key):
            answer = self._client.get_object(**self._location(key), **options)
            with closing(answer["Body"]):
                yield answer

    def exists(self, key: str) -> bool:
        try:
            with self._translate_errors("check", key):
                self._client.head_object(**self._location(key))
        except KeyError:
            return False
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
        return {"Bucket": self._bucket, "Key": self._prefix + self._key_check(key)}

    @contextmanager
    def _translate_errors(self, action: str, key: str) -> Iterator[None]:
        """Map botocore's errors inside the block to ours.

        Raise KeyError if an object that is read does not exist.
        """
        where = f"{self.url}: cannot {action} {key}"
        try:
            yield
        except ImagefleetError:
            raise
        except ClientError as error:
            if action in _READS and is_missing(error.response):
                raise KeyError(key) from None
            raise error_from_answer(error.response, where, action) from error
        except (NoCredentialsError, PartialCredentialsError) as error:
            raise ConfigurationError(
                f"{where}: credentials are missing; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from error
        except (ParamValidationError, NoRegionError) as error:
            raise ConfigurationError(f"{where}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise StorageUnavailable(f"{where}: {first_line(error)}") from error
        except Exception as error:  # botocore and urllib3 raise any kind for a wrong answer
            why = f"{type(error).__name__}: {first_line(error)}"
            raise StorageUnavailable(f"{where}: its answer cannot be read: {why}") from error


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
        client = session.client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
        client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirect)
        return client
    except (ValueError, ProfileNotFound, BotoCoreError) as error:
        raise ConfigurationError(str(error)) from error


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Mark a request as redirected already.

    After a redirect that names no region, botocore asks for it by HeadBucket. If that is redirected
    too, it would ask again, until Python's stack is full.
    """
    context.setdefault("s3_redirect", {})["redirected"] = True


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

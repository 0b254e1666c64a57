"""Say what an answer of an S3 server means that is not the wanted one.

Input: the answer as botocore parses it. Output: an error that says what to correct, and whether the
same request may succeed later. The server may be a proxy, a login page or a hostile host, so its
words are cut and made printable. This module imports no library of S3.
"""

from collections.abc import Mapping
from typing import Any, Final

from imagefleet.shared.errors import StorageDenied, StorageUnavailable
from imagefleet.shared.text.printable import mask_url, printable

_MISSING_CODES: Final = frozenset({"NoSuchKey", "404"})
_TEMPORARY_CODES: Final = frozenset(
    {"RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch", "SlowDown"}
)
"""The status of these answers is 4xx, yet the same put may succeed later."""
_DENIED_REASONS: Final = {
    "NoSuchBucket": "there is no such bucket; create it, or correct the address",
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
_TEMPORARY_STATUSES: Final = frozenset({302, 303, 307, 408, 409, 425, 429})
_MAX_SHOWN_CHARS: Final = 200
"""An error shows at most this many characters of what a server wrote."""


def is_missing(answer: Mapping[str, Any]) -> bool:
    """Return whether the server says that there is no such object."""
    return _code(answer) in _MISSING_CODES


def error_from_answer(
    answer: Mapping[str, Any], where: str, action: str
) -> StorageDenied | StorageUnavailable:
    """Decide whether the same request, which was to do `action`, may succeed later.

    Args:
        where: the beginning of the error's sentence.
    """
    code = _code(answer)
    details = answer.get("ResponseMetadata", {})
    status = int(details.get("HTTPStatusCode", 0))
    if code in _DENIED_REASONS:
        return StorageDenied(f"{where}: {_DENIED_REASONS[code]}")
    if code in _ACCESS_DENIED_CODES:
        return StorageDenied(f"{where}: these credentials lack the right {_RIGHTS.get(action, '')}")
    if status == _INSUFFICIENT_STORAGE:
        return StorageDenied(f"{where}: the store is full")
    may_pass = status >= 500 or status in _TEMPORARY_STATUSES or code in _TEMPORARY_CODES
    kind = StorageUnavailable if may_pass else StorageDenied
    if 300 <= status < 400:
        return kind(f"{where}: {_redirect(status, details.get('HTTPHeaders', {}))}")
    return kind(f"{where}: the server answers {status} {code}".rstrip())


def first_line(error: Exception) -> str:
    """Return the first line of what a library says, which may cite the server."""
    return printable(str(error).partition("\n")[0], _MAX_SHOWN_CHARS)


def _code(answer: Mapping[str, Any]) -> str:
    return printable(str(answer.get("Error", {}).get("Code", "")), _MAX_SHOWN_CHARS)


def _redirect(status: int, headers: Mapping[str, str]) -> str:
    """Say where a server sends a request that it does not take itself."""
    region, location = headers.get("x-amz-bucket-region"), headers.get("location")
    place = f"region {region}" if region else mask_url(location) if location else "no address"
    return (
        f"the server answers {status} and names {printable(place, _MAX_SHOWN_CHARS)}; redirects "
        "are not followed; correct endpoint_url or AWS_REGION"
    )

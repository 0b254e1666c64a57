"""Object stores keep images and datasets. The scheme of an address selects the implementation."""

from urllib.parse import urlsplit

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.process.extras import how_to_install
from imagefleet.shared.storage.base import (
    KeyCheck,
    ObjectStore,
    StoredObject,
    check_any_key,
    check_key,
)
from imagefleet.shared.storage.schemes import (
    Place,
    endpoint_of,
    folder_of,
    not_an_address,
    scheme_of,
)

__all__ = [
    "ObjectStore",
    "StoredObject",
    "announced_url",
    "endpoint_of",
    "folder_of",
    "open_bucket_of_others",
    "open_store",
    "place_of",
]


def open_bucket_of_others(url: str, setting: str) -> ObjectStore:
    """Return the store of a bucket that is only read. Its keys need not be such as we write."""
    return open_store(url, setting, check_any_key)


def open_store(
    url: str, setting: str = "IMAGEFLEET_STORAGE_URL", key_check: KeyCheck = check_key
) -> ObjectStore:
    """Return the store of `url`, which is the value of `setting`. `check` connects to it first.

    Raises:
        ConfigurationError: `url` is not the address of a store, or its client is not installed.
    """
    scheme = scheme_of(url)
    if scheme is None:
        raise not_an_address(url, setting)
    try:
        return scheme.open(url, setting, key_check)
    except ImportError as error:
        advice = how_to_install(scheme.extra)
        raise ConfigurationError(f"{scheme.name}:// needs {scheme.client}; {advice}") from error


def announced_url(url: str, store: ObjectStore) -> str | None:
    """Return the address by which other processes open `store`, which was opened from `url`.

    It holds no relative path. None: no other process can open the store.
    """
    scheme = scheme_of(url)
    if scheme is None or scheme.place is Place.PROCESS:
        return None
    query = urlsplit(url).query
    return store.url + (f"?{query}" if query else "")


def place_of(url: str, store: ObjectStore) -> str:
    """Return which store this is, whatever the spelling of `url`, from which it was opened.

    It is the store's URL, with the server if that is not the provider's own.
    """
    endpoint = endpoint_of(url)
    return store.url if endpoint is None else f"{store.url} at {endpoint.rstrip('/')}"

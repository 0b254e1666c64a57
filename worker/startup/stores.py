"""Open the object stores of a worker from its settings, and check the one for images."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from imagefleet.shared.errors import ImagefleetError, StorageDenied
from imagefleet.shared.storage import ObjectStore, announced_url, open_store
from imagefleet.shared.storage.job_keys import job_folder
from imagefleet.shared.storage.retry import retry_while_unavailable
from imagefleet.worker.bulk.destinations import DestinationPolicy
from imagefleet.worker.engine.loading.load_engine import SharedStores
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.shared_texts import SharedTexts

_STORAGE_START_S: Final = 60.0
"""A start waits at most this long for a store that is unavailable."""


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The object stores that a worker uses."""

    images: ObjectStore
    images_url: str | None
    """The address by which other processes open `images`; None if they cannot."""
    shared: SharedStores
    destinations: DestinationPolicy
    """Where datasets may be written."""


def open_stores(settings: WorkerSettings) -> Stores:
    """Open the stores without connecting to them.

    Raises:
        ConfigurationError: the address of a store, or an allowed destination, is not valid.
    """
    images = open_store(settings.storage_url)
    return Stores(
        images=images,
        images_url=announced_url(settings.storage_url, images),
        shared=open_shared_stores(settings),
        destinations=DestinationPolicy.parse(settings.storage_url, settings.bulk_allow),
    )


def open_shared_stores(settings: WorkerSettings) -> SharedStores:
    """Open the stores that hosts share, if there are any, without connecting to them.

    Raises:
        ConfigurationError: the address of one is not valid.
    """
    programs, texts = settings.programs_url, settings.texts_url
    secret = settings.programs_secret
    return SharedStores(
        executables=None if programs is None else open_store(programs, "IMAGEFLEET_PROGRAMS_URL"),
        texts=None if texts is None else SharedTexts(open_store(texts, "IMAGEFLEET_TEXTS_URL")),
        secret=secret.get_secret_value() if secret else "",
    )


def check_image_store(store: ObjectStore, settings: WorkerSettings) -> None:
    """Write and read in the store for images; delete too if the worker is to delete images.

    Raises:
        ConfigurationError, StorageDenied, StorageUnavailable: the store cannot be used.
    """
    _check(store.check, settings, "the check of the storage")
    if settings.keep is not None:
        try:
            _check(partial(_delete_nothing, store), settings, "the check of the right to delete")
        except StorageDenied as error:
            raise StorageDenied(f"IMAGEFLEET_KEEP needs the right to delete: {error}") from error


def _check(act: Callable[[], None], settings: WorkerSettings, what: str) -> None:
    """Wait for a store that is unavailable, and name the setting in errors."""
    retry_s = min(settings.storage_retry_s, _STORAGE_START_S)
    try:
        retry_while_unavailable(act, retry_s, what)
    except ImagefleetError as error:
        raise type(error)(f"IMAGEFLEET_STORAGE_URL: {error}") from error


def _delete_nothing(store: ObjectStore) -> None:
    folder = job_folder(f"check-{uuid.uuid4().hex}")
    store.delete_below(folder)
    store.delete(f"{folder}/0.png")  # S3 checks the right also where there is no such object

"""Open the destination of a dataset.

Input: what the user names as the destination. Output: its URL, which every host can open, and its
store. This module reads no plan and writes nothing.
"""

import re
from pathlib import Path
from typing import Final

from imagefleet.producer.connection.connection import Connection
from imagefleet.shared.bulk.image_folders import image_folder_around
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.storage import ObjectStore, announced_url, open_store
from imagefleet.shared.storage.schemes import Place, schemes_at
from imagefleet.shared.text.printable import mask_url

_DESTINATIONS: Final = schemes_at(Place.BUCKET, Place.FOLDER)
_BROKEN_URL: Final = re.compile(f"({'|'.join(each.name for each in _DESTINATIONS)})(:(?!//)|//)")
"""An address whose `://` was typed wrong, as s3:/bucket or s3//bucket."""
_SETTING: Final = re.compile("^IMAGEFLEET_STORAGE_URL(='[^']*')?:? ")
"""The beginning of an error about the address of a store, which names a setting."""


def open_new_destination(
    destination: str | Path, connection: Connection
) -> tuple[str, ObjectStore]:
    """Return what `open_destination` does.

    Raises:
        InvalidRequest: the dataset would lie among the images of jobs.
    """
    url, store = open_destination(destination)
    for images in connection.store_addresses():
        if folder := image_folder_around(url, images):
            limit = f"lies in {folder}/ of the image store, whose folders belong to jobs"
            raise InvalidRequest("destination", mask_url(url), limit)
    return url, store


def open_destination(destination: str | Path) -> tuple[str, ObjectStore]:
    """Return the URL of the destination, which every host can open, and its store.

    A path without a scheme is a folder on this host.
    """
    url = str(destination)
    if _BROKEN_URL.match(url):
        forms = ", ".join(scheme.examples[0] for scheme in _DESTINATIONS)
        limit = f"must be {forms} or a folder; ./ makes it a folder"
        raise InvalidRequest("destination", url, limit)
    try:
        if "://" not in url:
            url = Path(url).expanduser().absolute().as_uri()
        store = open_store(url)
    except RuntimeError as error:  # there is no such user
        raise InvalidRequest("destination", url, str(error)) from None
    except ConfigurationError as error:
        sentence = _SETTING.sub("", str(error))
        raise InvalidRequest("destination", mask_url(url), sentence) from None
    address = announced_url(url, store)
    if address is None:
        raise InvalidRequest("destination", url, "must be a store that workers can reach")
    return address, store

"""Tell whether a dataset would lie among the images of jobs, with which it could be deleted."""

from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from imagefleet.shared.storage.job_keys import FOLDERS
from imagefleet.shared.storage.schemes import Place, endpoint_of, folder_of, scheme_of


def image_folder_around(destination: str, storage_url: str) -> str | None:
    """Return the folder of an image store in which a dataset would lie; None if in neither.

    Args:
        destination: the address of the dataset.
        storage_url: the address of the image store.

    Raises:
        ConfigurationError, ValueError: one of them is not the address of a store.
    """
    place, store = _place(destination), _place(storage_url)
    if place is None or store is None or place[0] != store[0]:
        return None
    for folder in FOLDERS:
        if place[1].is_relative_to(store[1] / folder):
            return folder
    return None


def _place(url: str) -> tuple[str, PurePosixPath] | None:
    """Return the server of an address, and the path there, which begins with the bucket, if any."""
    if (folder := folder_of(url)) is not None:
        return "file", PurePosixPath(folder.resolve())
    scheme = scheme_of(url)
    if scheme is None or scheme.place is not Place.BUCKET:
        return None
    parts = urlsplit(url)
    return (endpoint_of(url) or scheme.name).rstrip("/"), PurePosixPath(
        parts.netloc, unquote(parts.path).strip("/")
    )

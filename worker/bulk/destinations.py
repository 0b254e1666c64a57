"""Decide in which destinations a worker writes datasets.

Input: the address of a destination, which any producer may choose. Output: nothing, or an error
that refuses it. Without this check a producer could send the worker, with the worker's credentials,
to any server, or let it write to any folder of its host. This module opens nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from imagefleet.shared.bulk.image_folders import image_folder_around
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.storage.schemes import (
    FOLDER_PATHS,
    Place,
    endpoint_of,
    folder_of,
    scheme_of,
    schemes_at,
)
from imagefleet.shared.text.printable import mask_url

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, kw_only=True)
class DestinationPolicy:
    """The endpoints and folders that the operator allows."""

    endpoints: frozenset[str]
    """These are the `scheme://host:port` of S3 servers. AWS and Google Cloud Storage are always
    allowed."""
    folders: tuple[Path, ...]
    """They are absolute, without symbolic links. Destinations may lie in them or below."""
    storage_url: str
    """The store of the images of jobs, in whose folders no dataset may lie."""

    @classmethod
    def parse(cls, storage_url: str, allowed: Iterable[str]) -> Self:
        """Return the policy of a worker whose images are stored at `storage_url`.

        Allowed are the endpoint of `storage_url`, and the `allowed` endpoints and folders. If
        `storage_url` is a folder and no folder is named, every folder is allowed: then producer and
        worker share a host or a network folder.

        Raises:
            ConfigurationError: one of `allowed` is neither an endpoint nor a folder.
        """
        images = scheme_of(storage_url)
        images_in = None if images is None else images.place
        endpoints = {endpoint_of(storage_url)} if images_in is Place.BUCKET else set()
        folders = []
        for entry in allowed:
            if entry.startswith(("http://", "https://")):
                endpoints.add(entry)
            elif folder := folder_of(entry):
                folders.append(folder.resolve())
            elif entry.startswith(FOLDER_PATHS):
                folders.append(Path(entry).resolve())
            else:
                raise ConfigurationError(
                    f"IMAGEFLEET_BULK_ALLOW: {mask_url(entry)!r} is neither an endpoint, "
                    "as in https://minio:9000, nor a folder, as in /mnt/datasets"
                )
        if not folders and images_in is Place.FOLDER:
            folders.append(Path("/"))
        try:
            known = frozenset(_normalised(each) for each in endpoints if each is not None)
        except ValueError as error:
            raise ConfigurationError(f"IMAGEFLEET_BULK_ALLOW: {error}") from None
        return cls(endpoints=known, folders=tuple(folders), storage_url=storage_url)

    def check(self, url: str) -> None:
        """Raise InvalidRequest if a dataset at `url` is not allowed."""
        try:
            reason = self._refusal(url)
        except (ValueError, ConfigurationError):
            reason = "is not the address of a store"
        if reason is not None:
            raise InvalidRequest("destination", mask_url(url), reason)

    def _refusal(self, url: str) -> str | None:
        if name := image_folder_around(url, self.storage_url):
            return f"lies in {name}/ of the image store, whose folders belong to jobs"
        scheme = scheme_of(url)
        if scheme is not None and scheme.place is Place.BUCKET:
            endpoint = endpoint_of(url)
            if endpoint is None or _normalised(endpoint) in self.endpoints:
                return None
            return (
                "this worker does not send its credentials to that endpoint; add it to "
                "IMAGEFLEET_BULK_ALLOW of the workers if it is yours"
            )
        folder = folder_of(url)
        if folder is None:
            *forms, last = [f"{each.name}://" for each in schemes_at(Place.BUCKET, Place.FOLDER)]
            return f"must be an {', '.join(forms)} or {last} address"
        resolved = folder.resolve()
        if any(resolved.is_relative_to(each) for each in self.folders):
            return None
        return (
            "this worker does not write to that folder; add it to IMAGEFLEET_BULK_ALLOW of the "
            "workers if it is yours"
        )


def _normalised(endpoint: str) -> str:
    """Return scheme, host and port in one spelling. Raises ValueError."""
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in _DEFAULT_PORTS or not host or "@" in endpoint:
        raise ValueError(f"{mask_url(endpoint)!r} must be http(s)://host[:port]")
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{host}:{parts.port or _DEFAULT_PORTS[parts.scheme]}{path}"

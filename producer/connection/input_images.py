"""Upload what jobs start from to the fleet's store, once for each content.

Input: what a caller gives as `image`, `mask_image` or `latents`. Output: an address or key that
workers can read. A str is always an address or a key. It never names a file of this host: a web
service that passes on the text of a stranger would upload its own files.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import (
    ConfigurationError,
    InvalidRequest,
    StorageDenied,
    StorageUnavailable,
)
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.job_keys import input_key
from imagefleet.shared.storage.regular_files import open_regular

NOT_YET_UPLOADED: Final = input_key("0" * 64, "png")
"""It stands for the key of an image while the other parameters are checked."""
_PATH_BEGINNINGS: Final = ("/", "./", "../", "~")
_EXTENSIONS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg"}
"""A file that begins with these bytes gets this extension. WebP begins with RIFF, a length and
WEBP."""
_CONTENT_TYPES: Final = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "webp": "image/webp",
    "safetensors": "application/octet-stream",
}
_KINDS: Final = "an http(s) address, a key of the store, a pathlib.Path, bytes or a PIL image"


class InputImageUploader:
    """The uploader opens the store at the first image that must be uploaded."""

    def __init__(self, open_store: Callable[[str | None], ObjectStore]) -> None:
        """Take a function that opens the store of a model, whose name may be None."""
        self._open_store = open_store

    def upload(self, field: str, image: object, model: str | None) -> str:
        """Upload `image` to the store of `model`, unless it is there, and return its key.

        Raises:
            InvalidRequest: `image` is of another type, too large, or no PNG, JPEG or WebP file.
            ConfigurationError: the store of the model is not known.
            StorageDenied, StorageUnavailable: the store does not accept the image.
        """
        checked = check_image(field, image)
        put_image(self._open_store(model), checked)
        return checked.key

    def require_object(self, field: str, text: str, model: str | None) -> None:
        """Check that a text without a folder is the key of an object. It may be the name of a file,
        which is not meant to be uploaded for its name.

        The keys of images of jobs, and of those that were uploaded, have folders. A store that this
        host cannot read is not asked.

        Raises:
            InvalidRequest: there is no such object.
        """
        if "/" in text:
            return
        try:
            store = self._open_store(model)
            exists = store.exists(text)
        except (ConfigurationError, StorageDenied, StorageUnavailable):
            return
        if not exists:
            limit = f"there is no such object in {store.url}; for a file of this host give"
            raise InvalidRequest(field, text, f"{limit} pathlib.Path({text!r})")


def path_or_address(field: str, text: str, folder: Path) -> Path | str:
    """Return the path that a text names, where texts may name files; or the text if it is an
    address or a key. Use it only for texts that the user of this host wrote.

    Args:
        folder: where a file with the name of a key is looked for.

    Raises:
        InvalidRequest: it does not begin like a path, but there is a file of that name.
    """
    if text.startswith(_PATH_BEGINNINGS):
        try:
            return Path(text).expanduser()
        except RuntimeError:  # there is no such user
            return Path(text)
    if "://" not in text and os.path.isfile(folder / text):
        raise InvalidRequest(
            field, text, f"is a file in {folder.absolute()}; write ./{text} to upload it"
        )
    return text


@dataclass(frozen=True)
class CheckedImage:
    """An image that may be uploaded."""

    key: str
    content_type: str
    data: bytes = field(repr=False)


def check_image(name: str, image: object) -> CheckedImage:
    """Read what a caller gave as parameter `name`.

    Raises:
        InvalidRequest: `image` is of another type, too large, or no PNG, JPEG or WebP file.
    """
    data = _read(name, image)
    if len(data) > MAX_INPUT_BYTES:
        limit = f"must be at most {MAX_INPUT_BYTES:,} bytes"
        raise InvalidRequest(name, _shown(image, data), limit)
    extension = _extension(name, data, image)
    key = input_key(hashlib.sha256(data).hexdigest(), extension)
    return CheckedImage(key, _CONTENT_TYPES[extension], data)


def put_image(store: ObjectStore, image: CheckedImage) -> None:
    """Upload an image, unless it is in the store.

    Raises:
        StorageDenied, StorageUnavailable: the store does not accept it.
    """
    if not _exists(store, image.key):
        store.put(image.key, image.data, image.content_type)


def _exists(store: ObjectStore, key: str) -> bool:
    """Return whether the store has the key. Without the right to list keys, S3 does not tell."""
    try:
        return store.exists(key)
    except StorageDenied:
        return False


def _read(field: str, image: object) -> bytes:
    """Return the content of the file that `image` names or is."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, PathLike):
        return _read_file(field, Path(image))
    if (save := getattr(image, "save", None)) is None:
        raise InvalidRequest(field, type(image).__name__, f"must be {_KINDS}")
    buffer = BytesIO()
    try:
        # Pillow would drop the orientation of a photo, which workers apply.
        exif = {"exif": image.getexif()} if hasattr(image, "getexif") else {}
        save(buffer, format="PNG", **exif)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequest(field, type(image).__name__, f"cannot be saved: {error}") from None
    return buffer.getvalue()


def _read_file(field: str, path: Path) -> bytes:
    """Read a file, but at most one byte more than is allowed."""
    try:
        with open_regular(path) as file:
            return file.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(field, str(path), error.strerror or "cannot be read") from None
    except ValueError as error:  # a path with a NUL
        raise InvalidRequest(field, str(path), f"cannot be read: {error}") from None


def _extension(field: str, data: bytes, image: object) -> str:
    if field == "latents":
        # The length of a header in 8 bytes, then the header, a JSON object.
        if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data):
            return "safetensors"
        raise InvalidRequest(field, _shown(image, data), "must be a safetensors file")
    for start, extension in _EXTENSIONS.items():
        if data.startswith(start):
            return extension
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    raise InvalidRequest(field, _shown(image, data), "must be a PNG, JPEG or WebP file")


def _shown(image: object, data: bytes) -> str:
    return str(image) if isinstance(image, PathLike) else f"{len(data):,} bytes"

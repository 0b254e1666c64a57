"""Open a dataset of the Hugging Face Hub as a table that is read row by row, with `datasets`.

Input: hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT]. Output: a table. Nothing is downloaded
before its rows are read.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from imagefleet.producer.bulk.readers import Table, open_iterable
from imagefleet.producer.bulk.rows import Row
from imagefleet.shared.errors import ConfigurationError, InvalidRequest, StorageUnavailable
from imagefleet.shared.jobs.parameter_types import MAX_INPUT_BYTES
from imagefleet.shared.process.extras import how_to_install

_FORM: Final = "hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT]"
_NAME: Final = r"[A-Za-z0-9][\w.-]*"
_ADDRESS: Final = re.compile(
    rf"hf://datasets/(?P<path>{_NAME}(/{_NAME})?)(@(?P<revision>[\w.-]+))?"
    r"(/(?P<name>[^/:@]+))?(:(?P<split>[^/:@]+))?"
)
_DEFAULT_SPLIT: Final = "train"
_FILE: Final = re.compile(r"(zip://[^:]*::)?hf://datasets/([^@:]+)@[^:]+")
"""It matches the path of a file of a dataset, perhaps in an archive. The second group is ORG/NAME.
"""


def open_hub_dataset(url: str) -> Table:
    """Open the dataset at `url`, which is read row by row. Images stay files.

    Reading its rows raises StorageUnavailable if the Hub fails, or a file cannot be read.

    Raises:
        InvalidRequest: the address is wrong, or the Hub has no such dataset, config or split.
        ConfigurationError: `datasets` is not installed.
    """
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise InvalidRequest("input", url, f"must be {_FORM}")
    try:
        from datasets import Image, load_dataset
    except ImportError:
        advice = how_to_install("dataset", "hub")  # `datasets` needs Pillow for rows with images
        raise ConfigurationError(f"hf:// needs datasets; {advice}") from None
    named = {key: value for key, value in parts.groupdict().items() if value is not None}
    try:
        rows: Any = load_dataset(**{"split": _DEFAULT_SPLIT, **named}, streaming=True)
    except Exception as error:  # of many libraries, down to those that read the files
        raise InvalidRequest("input", url, f"cannot be opened: {_sentence(error)}") from None
    images = [name for name, each in (rows.features or {}).items() if isinstance(each, Image)]
    if images:  # a file gives the same digest each time
        rows = rows.decode(False)
    table = open_iterable(rows, url)
    return replace(table, rows=_read(table.rows, url, parts["path"], images))


def _read(
    rows: Iterator[Row | None], url: str, repository: str, images: Sequence[str]
) -> Iterator[Row | None]:
    """Yield the rows, with the files of the repository that are their images."""
    number = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # of many libraries, down to those that read the files
            sentence = f"{url} cannot be read from row {number} on: {_sentence(error)}"
            raise StorageUnavailable(f"{sentence}; run the same command again") from error
        if isinstance(row, Mapping):
            row = {**row, **{name: _image(row[name], repository) for name in images if name in row}}
        yield row
        number += 1


def _image(value: object, repository: str) -> object:
    """Return an image as `datasets` holds it; its bytes are still to be read if it is a file.

    Only files of the repository itself are read. A stranger may have written the path of another
    file, which may lie on this host.
    """
    if isinstance(value, Mapping) and value.get("bytes") is None:
        path = str(value.get("path"))
        file = _FILE.fullmatch(path)
        if file is not None and file[2] == repository:
            return _File(path)
    return value


@dataclass(frozen=True)
class _File(Mapping[str, object]):
    """An image that is a file of the Hub. It is fetched when its bytes are asked for, so the files
    of a column that is ignored are not fetched."""

    path: str

    def __getitem__(self, key: str) -> object:
        return {"path": lambda: self.path, "bytes": self._fetch}[key]()

    def __iter__(self) -> Iterator[str]:
        return iter(("bytes", "path"))

    def __len__(self) -> int:
        return 2

    def _fetch(self) -> bytes:
        """Return the content, or a little more than is allowed of it.

        Raises:
            InvalidRequest: the repository has no such file.
            StorageUnavailable: the Hub fails.
        """
        import fsspec

        try:
            with fsspec.open(self.path, "rb") as file:
                content: bytes = file.read(MAX_INPUT_BYTES + 1)
                return content
        except FileNotFoundError:
            raise InvalidRequest("image", self.path, "there is no such file") from None
        except Exception as error:  # of many libraries
            sentence = f"{self.path} cannot be read: {_sentence(error)}"
            raise StorageUnavailable(f"{sentence}; run the same command again") from error


def _sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__

"""Find the tables that a caller names as the input of a dataset, and open them one after another.

Input: names of files, globs, folders, `s3://` and `hf://` addresses, standard input, or an iterable
of rows. Output: tables, always in the same order. This module depends on neither parameters nor
plans.
"""

import glob
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from imagefleet.producer.bulk.hub_dataset import open_hub_dataset
from imagefleet.producer.bulk.image_files import IMAGE_TYPES
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.readers import (
    FILE_TYPES,
    TABLE_ENDS,
    Table,
    has_file_type,
    is_image,
    open_images,
    open_iterable,
    open_table,
)
from imagefleet.producer.bulk.saved_datasets import files_of_saved
from imagefleet.producer.bulk.stored_inputs import find_objects, is_hidden
from imagefleet.producer.bulk.text_files import FileOptions, error_named
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.arguments import check_not_data_frame
from imagefleet.shared.storage import ObjectStore, folder_of
from imagefleet.shared.storage.schemes import Place, scheme_of

STDIN: Final = "-"


class InputNames(tuple[str, ...]):
    """Names of files, globs, folders and addresses, as on a command line."""


Rows = str | Path | InputNames | Iterable[str | Path | Mapping[str, Any]]
"""The rows are a name as in `InputNames`, paths, or an iterable of rows, such as a Hugging Face
dataset."""


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """A table that can be opened."""

    open: Callable[[], AbstractContextManager[Table]]
    folder: Path | None = None
    """Paths in its rows are relative to this folder. None: a stranger may have written it, so texts
    in it never name files of this host."""
    is_local_file: bool = False
    """Whether it can be opened at once, and several times."""


def find_sources(
    rows: Rows,
    input_format: str | None = None,
    destination: str = "",
    *,
    delimiter: str | None = None,
    encoding: str | None = None,
    unguided_scale: float = 1.0,
) -> list[TableSource]:
    """Return the tables of an input, in the order in which their rows are numbered.

    Args:
        input_format: type of all files, one of `FILE_TYPES`; None: as their names end.
        destination: URL of the dataset that is made of them. Its own files are left out of a
            folder, a prefix or a pattern, so that the same input can be given again.
        delimiter: the character between two cells of CSV files; None: a comma, in .tsv files a tab.
        encoding: that of text files, as Python names it; None: UTF-8, or as their marks say.
        unguided_scale: see `Notes`.

    Raises:
        InvalidRequest: there is no such file, or `rows` is none of the above.
        ConfigurationError, StorageDenied, StorageUnavailable: an address cannot be opened.
    """
    if input_format is not None and input_format not in FILE_TYPES:
        known = ", ".join(FILE_TYPES)
        raise InvalidRequest("input_format", input_format, f"must be one of {known}")
    options = FileOptions(
        file_type=input_format,
        delimiter=delimiter,
        encoding=encoding,
        notes=Notes(unguided_scale),
    )
    if isinstance(rows, str):
        rows = InputNames((rows,))
    output = _output_folder(destination)
    if isinstance(rows, Path):
        return _files([rows], options, output)
    if isinstance(rows, InputNames):
        return [source for name in rows for source in _named(name, options, destination)]
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        limit = "must be the name of a file, paths, or an iterable of prompts or mappings"
        raise InvalidRequest("rows", rows, limit)
    check_not_data_frame("rows", rows)
    if isinstance(rows, list | tuple):
        paths = [row for row in rows if isinstance(row, Path)]
        if paths and len(paths) == len(rows):
            return _files(paths, options, output)
    return [
        TableSource(
            open=lambda: nullcontext(open_iterable(rows, notes=options.notes)), folder=Path()
        )
    ]


def _named(name: str, options: FileOptions, destination: str) -> list[TableSource]:
    if name == STDIN:
        return [TableSource(open=partial(_open_stdin, options), folder=Path())]
    if name.startswith("hf://"):
        return [TableSource(open=lambda: nullcontext(open_hub_dataset(name)))]
    scheme = scheme_of(name)
    if scheme is not None and scheme.place is Place.BUCKET:
        any_type = options.file_type is not None
        store, keys = find_objects(name, any_type=any_type, destination=destination)
        return [TableSource(open=partial(_open_stored, store, key, options)) for key in keys]
    try:
        path = folder_of(name) or Path(name).expanduser()
        exists = path.exists()
    except (OSError, RuntimeError) as error:  # no right to look, too long a name, no such user
        raise InvalidRequest("input", name, f"cannot be read: {error}") from None
    output = _output_folder(destination)
    if not exists and glob.has_magic(name):
        found = [each for each in _matching(path) if not _is_below(each, output)]
        if not found:
            raise InvalidRequest("input", name, "matches no file")
        return _files([each for each in found if each.is_file()], options, output)
    return _files([path], options, output)


def _matching(pattern: Path) -> list[Path]:
    """Return what fits a pattern. The folder from which it is looked for is no pattern, whatever
    its name holds."""
    folder = next(each for each in pattern.parents if each.exists())
    names = glob.glob(str(pattern.relative_to(folder)), root_dir=folder, recursive=True)
    return [folder / name for name in sorted(names)]


def _output_folder(destination: str) -> Path | None:
    """Return the folder of a dataset, resolved; None if it is made elsewhere."""
    folder = folder_of(destination)
    return None if folder is None else folder.resolve()


def _is_below(path: Path, output: Path | None) -> bool:
    """Return whether a path is in `output`, which is resolved."""
    return output is not None and path.resolve().is_relative_to(output)


def _files(paths: Iterable[Path], options: FileOptions, output: Path | None) -> list[TableSource]:
    """Return a table for each file. Images that follow each other are one table."""
    files = (
        file
        for path in paths
        for file in (_files_in(path, options, output) if path.is_dir() else [path])
    )
    sources = []
    for are_images, group in groupby(files, lambda file: _is_image(file, options)):
        if are_images:
            sources.append(_images(list(group), options))
        else:
            sources += [
                _file(file, partial(open_table, file, str(file), options)) for file in group
            ]
    return sources


def _is_image(file: Path, options: FileOptions) -> bool:
    return options.file_type is None and is_image(file.name)


def _file(file: Path, opened: Callable[[], Table]) -> TableSource:
    folder = file.absolute().parent
    return TableSource(open=partial(_opened, opened), folder=folder, is_local_file=True)


def _images(files: list[Path], options: FileOptions) -> TableSource:
    name = files[0].name if len(files) == 1 else files[0].absolute().parent.name
    for file in files:
        if not file.exists():
            raise InvalidRequest("input", str(file), "No such file or directory")
    return _file(files[0], partial(open_images, files, name, options))


def _opened(open_one: Callable[[], Table]) -> AbstractContextManager[Table]:
    return nullcontext(open_one())


def _files_in(folder: Path, options: FileOptions, output: Path | None) -> list[Path]:
    """Return the files of a folder without the hidden ones, and without those in `output`, unless
    that is the folder itself or lies around it."""
    if _is_below(folder, output):
        output = None
    if options.file_type is None and (saved := files_of_saved(folder)) is not None:
        return saved
    files = (
        path
        for path in sorted(folder.rglob("*"))
        if not is_hidden(path.relative_to(folder).parts)
        and path.is_file()
        and not _is_below(path, output)
    )
    everything = list(files)
    found = [each for each in everything if options.file_type or has_file_type(each.name)]
    if not found:  # else the images may be those that the rows of the tables start from
        found = [each for each in everything if is_image(each.name)]
    if not found:
        known = ", ".join(f".{each}" for each in sorted({*TABLE_ENDS, *IMAGE_TYPES}))
        raise InvalidRequest("input", str(folder), f"holds no file that ends in {known}")
    return found


@contextmanager
def _open_stdin(options: FileOptions) -> Iterator[Table]:
    """Copy standard input to a temporary file and open it. Parquet is read from its end."""
    if options.file_type is None:
        known = ", ".join(FILE_TYPES)
        limit = f"standard input needs --input-format (in Python input_format=), one of {known}"
        raise InvalidRequest("input", STDIN, limit)
    with _temporary_table(
        lambda file: shutil.copyfileobj(sys.stdin.buffer, file), "stdin", options
    ) as table:
        yield table


@contextmanager
def _open_stored(store: ObjectStore, key: str, options: FileOptions) -> Iterator[Table]:
    """Download an object to a temporary file and open it."""
    with _temporary_table(
        lambda file: store.get_file(key, file), store.url + key, options
    ) as table:
        yield table


@contextmanager
def _temporary_table(
    write: Callable[[Any], object], name: str, options: FileOptions
) -> Iterator[Table]:
    with tempfile.NamedTemporaryFile(prefix="imagefleet-input-") as file:
        write(file)
        file.flush()
        with error_named(Path(file.name), name):
            yield open_table(Path(file.name), name, options)

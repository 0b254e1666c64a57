"""Require that nobody but this user can put files into a folder of executables.

Input: a folder. Output: an error if another user owns it, an entry of it, or a way to replace it.
Executables are code: whoever can write them runs code in the worker.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from imagefleet.shared.errors import ConfigurationError

_ROOT = 0


def make_private(folder: Path) -> None:
    """Create `folder` with mode 0700, or check the one that exists and set its mode.

    Raises:
        ConfigurationError: another user owns the folder or something below it, others can replace
            it through one of its parents, or it cannot be created or read.
    """
    try:
        _create(folder)
        _check_owner(folder)
        for parent in _parents(folder):
            _check_parent(folder, parent)
        folder.chmod(0o700)
        for entry in _entries(folder):
            with suppress(FileNotFoundError):  # another worker of this user has just deleted it
                _check_owner(folder, entry)
    except OSError as error:
        raise ConfigurationError(
            f"IMAGEFLEET_CACHE_DIR={folder} cannot be created or made private: {error}"
        ) from error


def _create(folder: Path) -> None:
    """Create a folder and its missing parents, each with mode 0700 whatever the umask is."""
    if not folder.is_dir():
        if folder.parent != folder:
            _create(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _parents(folder: Path) -> Iterator[Path]:
    """Yield the paths that lead to `folder`: its parents, the targets of links, and their parents.

    `folder` itself is left out, unless it is a link.
    """
    left, seen = [folder.absolute()], {folder.resolve()}
    while left:
        path = left.pop()
        for each in (path, *path.parents):
            if each not in seen:
                seen.add(each)
                if each.is_symlink():
                    left.append(each.parent / each.readlink())
                yield each


def _entries(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder, onerror=_raise):
        yield from (Path(at, name) for name in [*folders, *files])


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def owner_of(path: Path, *, follow_links: bool = False) -> int:
    """Return the user id of a path's owner."""
    return path.stat(follow_symlinks=follow_links).st_uid


def _check_owner(folder: Path, entry: Path | None = None) -> None:
    owner = owner_of(folder, follow_links=True) if entry is None else owner_of(entry)
    if owner != os.geteuid():
        where = "" if entry is None else f": {entry}"
        raise ConfigurationError(
            f"IMAGEFLEET_CACHE_DIR={folder}{where} belongs to user {owner}, who could run code in "
            f"this worker (user {os.geteuid()}): delete it, or set IMAGEFLEET_CACHE_DIR to a "
            "folder of the worker's own user"
        )


def _check_parent(folder: Path, parent: Path) -> None:
    """Raise ConfigurationError if another user could replace `folder` through `parent`.

    In a folder with the sticky bit, such as /tmp, only the owner of an entry can replace it.
    """
    found = parent.lstat()
    if owner_of(parent) not in (_ROOT, os.geteuid()):
        fault = f"belongs to user {owner_of(parent)}"
    elif stat.S_ISDIR(found.st_mode) and found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
        fault = f"can be written by others (mode {stat.S_IMODE(found.st_mode):o})"
    else:
        return
    raise ConfigurationError(
        f"IMAGEFLEET_CACHE_DIR={folder}: its parent {parent} {fault}, so another user could run "
        "code in this worker: set IMAGEFLEET_CACHE_DIR to a folder that only the worker's user "
        f"can replace, or correct the owner and mode of {parent}"
    )

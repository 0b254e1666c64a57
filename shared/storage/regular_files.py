"""Open a file for reading, if it is a regular one. A FIFO or a device could block for ever.

Input: a path. Output: an open file, or an OSError that says what lies there instead.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotARegularFile(OSError):
    """The path names a FIFO, a socket or a device."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, without waiting for anybody.

    Raises:
        NotARegularFile: it is a FIFO, a socket or a device.
        OSError: it cannot be opened, or is a folder.
    """
    _check(path.stat())  # before it is opened, which may have an effect on a device
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
    raise NotARegularFile(errno.EINVAL, f"is {kind}, and only regular files are read")

"""What is no regular file is refused in one sentence. Without that, a FIFO blocks its reader."""

import os
import socket
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from imagefleet.producer.bulk.inputs import find_sources
from imagefleet.producer.connection.input_images import InputImageUploader
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.shared.storage.memory import MemoryStore


def _make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket may have 107 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(here)


def _link_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = pytest.mark.parametrize(
    ("make", "kind"),
    [(os.mkfifo, "a FIFO"), (_make_socket, "a socket"), (_link_device, "a device")],
)
Make = Callable[[Path], None]


@KINDS
def test_a_store_has_no_such_object(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Make, kind: str
) -> None:
    store = FolderStore(tmp_path)
    make(tmp_path / "0.tar")
    with pytest.raises(KeyError):
        store.get("0.tar")
    with pytest.raises(KeyError):
        store.get_file("0.tar", BytesIO())
    with pytest.raises(KeyError):
        store.get_range("0.tar", 0, 1)
    assert not store.exists("0.tar")
    assert f"0.tar is {kind}, and only regular files are read; it counts as missing" in caplog.text
    store.put("0.tar", b"new", "application/x-tar")
    assert store.get("0.tar") == b"new"


@KINDS
def test_a_dataset_is_not_made_of_it(tmp_path: Path, make: Make, kind: str) -> None:
    make(tmp_path / "prompts.txt")
    [source] = find_sources(tmp_path / "prompts.txt")
    with pytest.raises(InvalidRequest, match=f"is {kind}, and only regular files are read"):
        source.open()


@KINDS
def test_it_is_not_uploaded_as_an_image(tmp_path: Path, make: Make, kind: str) -> None:
    make(tmp_path / "cat.png")
    uploader = InputImageUploader(lambda _: MemoryStore())
    with pytest.raises(InvalidRequest, match=f"is {kind}, and only regular files are read"):
        uploader.upload("image", tmp_path / "cat.png", None)

"""Read what images say of how they were generated: PNG, JPEG and WebP of other tools and of ours.

Input: image files. Output: a row for each. The pixels are not read.

Sources: PNG (Third Edition) 11.3.3, Exif 2.32 (tag UserComment), RFC 9649 (WebP), and
https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/images.py.
"""

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from imagefleet.producer.bulk.a1111 import infotext_row
from imagefleet.producer.bulk.comfyui import workflow_row
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.bulk.rows import RejectedRow, Row, shown_value
from imagefleet.producer.bulk.text_files import FileOptions
from imagefleet.shared.storage.regular_files import open_regular

IMAGE_TYPES: Final = ("png", "jpg", "jpeg", "webp")
MAX_TEXT_BYTES: Final = 1 << 24
"""Longer texts in an image are not read."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_EXIF_IFD: Final = 0x8769
_USER_COMMENT: Final = 0x9286
_MAX_ENTRIES: Final = 1_000
_MAX_CHUNKS: Final = 100_000


def read_image(path: Path, options: FileOptions) -> Iterator[Row | None]:
    """Yield the one row of an image."""
    yield from read_images([path], options)


def read_images(paths: Sequence[Path], options: FileOptions) -> Iterator[Row | None]:
    """Yield a row for each image. One that says nothing is rejected by its name."""
    for path in paths:
        try:
            with open_regular(path) as file:
                texts = texts_in(file)
            yield _row(path, texts, options.notes)
        except (OSError, ValueError, struct.error, zlib.error) as error:
            yield RejectedRow("image", shown_value(path.name), f"cannot be read: {error}")


def _row(path: Path, texts: dict[str, str], notes: Notes) -> Row:
    """Return the row that the texts of an image describe."""
    if "parameters" in texts:
        row = infotext_row(texts["parameters"], notes)
    elif "prompt" in texts:
        try:
            row = workflow_row(json.loads(texts["prompt"]), notes)
        except (ValueError, RecursionError):
            row = RejectedRow("workflow", None, "is not JSON")
    else:
        row = RejectedRow(
            "image", None, "says nothing of AUTOMATIC1111 (parameters) or ComfyUI (prompt)"
        )
    if isinstance(row, RejectedRow):
        return RejectedRow(row.field, shown_value(path.name), row.reason)
    return row


def texts_in(file: BinaryIO) -> dict[str, str]:
    """Return the texts of an image by their keywords. The comment of Exif is `parameters`.

    Raises:
        ValueError: the file is none of these images, or is damaged.
    """
    head = file.read(12)
    file.seek(0)
    if head.startswith(_PNG):
        return dict(_png_texts(file))
    if head.startswith(b"\xff\xd8"):
        exif = _jpeg_exif(file)
    elif head[:4] == b"RIFF" and head[8:] == b"WEBP":
        exif = _webp_exif(file)
    else:
        raise ValueError("it is no PNG, JPEG or WebP file")
    comment = _user_comment(exif) if exif else ""
    return {"parameters": comment} if comment else {}


def _png_texts(file: BinaryIO) -> Iterator[tuple[str, str]]:
    file.seek(len(_PNG))
    for _ in range(_MAX_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            return
        length, kind = struct.unpack(">I4s", head)
        if kind in (b"tEXt", b"zTXt", b"iTXt") and length <= MAX_TEXT_BYTES:
            data = file.read(length)
            keyword, _, rest = data.partition(b"\0")
            yield keyword.decode("latin-1"), _png_text(kind, rest)
            file.seek(4, 1)
        else:
            file.seek(length + 4, 1)


def _png_text(kind: bytes, data: bytes) -> str:
    if kind == b"tEXt":
        return data.decode("latin-1")
    if kind == b"zTXt":
        return _inflated(data[1:]).decode("latin-1")
    _, _, text = data[2:].split(b"\0", 2)  # behind the language and the translated keyword
    return (_inflated(text) if data[:1] == b"\1" else text).decode("utf-8")


def _inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    text = stream.decompress(data, MAX_TEXT_BYTES)
    if stream.unconsumed_tail:
        raise ValueError(f"a text in it has more than {MAX_TEXT_BYTES:,} bytes")
    return text


def _jpeg_exif(file: BinaryIO) -> bytes:
    """Return the TIFF part of the Exif segment, or nothing."""
    file.seek(2)
    while len(head := file.read(4)) == 4 and head[0] == 0xFF and head[1] != 0xDA:
        data = file.read(max(0, int.from_bytes(head[2:]) - 2))
        if head[1] == 0xE1 and data.startswith(b"Exif\0\0"):
            return data[6:]
    return b""


def _webp_exif(file: BinaryIO) -> bytes:
    file.seek(12)
    for _ in range(_MAX_CHUNKS):
        head = file.read(8)
        if len(head) < 8:
            return b""
        kind, length = struct.unpack("<4sI", head)
        if kind == b"EXIF" and length <= MAX_TEXT_BYTES:
            return file.read(length).removeprefix(b"Exif\0\0")
        file.seek(length + length % 2, 1)
    return b""


def _user_comment(exif: bytes) -> str:
    """Return the comment of a user in a TIFF structure, or nothing."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        raise ValueError("its Exif is damaged")
    [start] = struct.unpack_from(f"{order}I", exif, 4)
    below = _entry(exif, order, start, _EXIF_IFD)
    if below is None:
        return ""
    found = _entry(exif, order, struct.unpack(f"{order}I", below[1])[0], _USER_COMMENT)
    if found is None:
        return ""
    count, value = found
    at = struct.unpack(f"{order}I", value)[0]
    data = exif[at : at + count]
    code, text = data[:8], data[8:]
    if code == b"UNICODE\0":  # its order of bytes is not fixed
        return text.decode("utf-16-le" if _is_little_endian(text, order) else "utf-16-be")
    return text.rstrip(b"\0").decode("utf-8", "replace")


def _is_little_endian(text: bytes, order: str) -> bool:
    """Return the order in which more characters are those of a first page of 256."""
    pages = text[0::2].count(0), text[1::2].count(0)
    return order == "<" if pages[0] == pages[1] else pages[1] > pages[0]


def _entry(exif: bytes, order: str, at: int, tag: int) -> tuple[int, bytes] | None:
    """Return count and value field of an entry of the directory at `at`; None without it."""
    [entries] = struct.unpack_from(f"{order}H", exif, at)
    for number in range(min(entries, _MAX_ENTRIES)):
        found, _, count, value = struct.unpack_from(f"{order}HHI4s", exif, at + 2 + 12 * number)
        if found == tag:
            return count, value
    return None

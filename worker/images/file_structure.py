"""Check the structure of an image file before it is decoded.

Input: the bytes of a file. Output: an error if decoding it could take far longer than its size and
pixels suggest. Each scan of a progressive JPEG makes the decoder pass over the whole image once
more, and Pillow reads the segments of a JPEG and the chunks of a PNG one by one in Python.

Sources: ITU-T T.81, annex B (JPEG); W3C PNG specification, section 5 (chunks).
"""

import re
from typing import Final

MAX_SCANS: Final = 100
"""Scans of a JPEG. Encoders write about 10; a scan of 40 megapixels takes up to 40 ms."""
MAX_PARTS: Final = 10_000
"""Segments of a JPEG or chunks of a PNG. In 20 MB this is one part for every 2,000 bytes."""

_JPEG_START: Final = b"\xff\xd8"
_START_OF_SCAN: Final = 0xDA
_END_OF_IMAGE: Final = 0xD9
_MARKER: Final = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])")
"""A marker that begins a segment or ends the image. Between segments lies entropy-coded data, in
which 0xFF is followed by 0x00 or is a restart marker (D0 to D7)."""
_PNG_START: Final = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK_OVERHEAD: Final = 12
"""Bytes of a chunk's length, type and checksum."""


def check_structure(data: bytes) -> None:
    """Check the number of scans, segments or chunks of a file. WebP files have no such parts.

    Raises:
        ValueError: there are too many.
    """
    if data.startswith(_JPEG_START):
        if (scans := count_jpeg_scans(data)) > MAX_SCANS:
            raise ValueError(f"has {scans:,} scans; must have at most {MAX_SCANS}")
    elif data.startswith(_PNG_START):
        _check_png_chunks(data)


def count_jpeg_scans(data: bytes) -> int:
    """Return the number of scans of a JPEG file.

    Raises:
        ValueError: the file has more segments than any encoder writes.
    """
    scans, segments, position = 0, 0, len(_JPEG_START)
    while found := _MARKER.search(data, position):
        marker = found[1][0]
        if marker == _END_OF_IMAGE:
            break
        segments += 1
        _check_parts("segments", segments)
        scans += marker == _START_OF_SCAN
        length = int.from_bytes(data[found.end() : found.end() + 2])
        position = found.end() + max(length, 2)
    return scans


def _check_png_chunks(data: bytes) -> None:
    chunks, position = 0, len(_PNG_START)
    while position < len(data):
        chunks += 1
        _check_parts("chunks", chunks)
        position += _PNG_CHUNK_OVERHEAD + int.from_bytes(data[position : position + 4])


def _check_parts(kind: str, parts: int) -> None:
    if parts > MAX_PARTS:
        raise ValueError(f"has more than {MAX_PARTS:,} {kind}")

"""Keep long texts, as images in base64, apart from what reads JSON and digests it.

To parse 50 MB of JSON takes several times its memory, and holds the interpreter's lock, so that no
other request goes on meanwhile. Long texts need no parsing: they are cut out before, and put in
afterwards. The functions block, but hold the lock for milliseconds only.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

LONG: Final = 65_536
"""A text of more characters is long."""
_PART: Final = 1 << 20
"""So many characters are looked at while the lock is held."""
_MAX_QUOTES: Final = 100_000
"""No texts are cut out after so many quotes, because each costs a step."""
_BEFORE: Final = b"\\"
_TEXT_BEGINS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/")
"""After a quote that ends a text of JSON stands none of these."""


def cut_long_texts(content: bytes | bytearray) -> tuple[bytes, dict[str, str]]:
    """Return JSON with a random word in the place of each long text, and the texts by their words.

    Only texts without escapes, of printable ASCII, are cut out. What is no JSON stays none.
    """
    if len(content) <= LONG:
        return bytes(content), {}
    mark, copied = uuid.uuid4().hex, 0
    texts: dict[str, str] = {}
    parts: list[bytes | bytearray] = []
    for start, end in islice(_neighbours(content), _MAX_QUOTES):
        text = _long_text(content, start, end)
        if text is not None:
            word = f"{mark}{len(texts)}"
            texts[word] = text
            parts += content[copied : start + 1], word.encode()
            copied = end
    return b"".join([*parts, content[copied:]]), texts


def put_in(value: Any, texts: dict[str, str]) -> Any:
    """Return parsed JSON with its long texts in their places.

    Raises ValueError if one of them is a name in an object.
    """
    left = dict(texts)

    def place(text: str) -> Any:
        return left.pop(text, text)

    value = _changed(value, place) if texts else value
    if left:
        raise ValueError(f"a name in it has more than {LONG:,} letters")
    return value


def digest_of(value: Any) -> bytes:
    """Return the SHA-256 of a value of JSON: the same for equal values, whatever the order of
    their names."""

    def digested(text: str) -> Any:
        return text if len(text) <= LONG else {"sha256": _digest_of_text(text)}

    short = json.dumps(_changed(value, digested), sort_keys=True)
    return hashlib.sha256(short.encode()).digest()


def _neighbours(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yield the places of each quote and the next one."""
    start = content.find(b'"')
    while start >= 0 and (end := content.find(b'"', start + 1)) >= 0:
        yield start, end
        start = end


def _long_text(content: bytes | bytearray, start: int, end: int) -> str | None:
    """Return the text between two quotes; None if it is not to be cut out."""
    if end - start <= LONG or content[start + 1] not in _TEXT_BEGINS:
        return None
    if content[start - 1 : start] == _BEFORE:  # so the quote belongs to a text
        return None
    try:
        text = str(memoryview(content)[start + 1 : end], "ascii")
    except UnicodeDecodeError:
        return None
    return text if all(map(_is_plain, _parts_of(text))) else None


def _is_plain(part: str) -> bool:
    return part.isprintable() and "\\" not in part


def _parts_of(text: str) -> Iterator[str]:
    return (text[at : at + _PART] for at in range(0, len(text), _PART))


def _digest_of_text(text: str) -> str:
    digest = hashlib.sha256()
    for part in _parts_of(text):
        digest.update(part.encode())
    return digest.hexdigest()


def _changed(value: Any, change: Callable[[str], Any]) -> Any:
    """Return a value of JSON whose texts, but not the names of objects, are changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(each, change) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _changed(each, change) for name, each in value.items()}

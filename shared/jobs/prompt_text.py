"""Check the text of prompts: it must be printable, and show something."""

import unicodedata
from typing import Final

_ALLOWED_CONTROLS: Final = "\t\n\r"
_BLANK_CATEGORIES: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
"""Unicode categories whose characters show nothing: controls, zero-width characters and blanks."""
_BLANK_CHARACTERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters of other categories that show nothing: fillers and joiners."""
_VARIATION_SELECTORS: Final = frozenset(
    map(chr, [*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)])
)


def check_text(text: str, *, stored: bool) -> str:
    """Return `text` if it can be a prompt or a negative prompt.

    Args:
        stored: a producer of another release may have accepted it, by fewer rules.

    Raises:
        ValueError: it holds broken UTF-8 or control characters, or shows nothing.
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("must not contain broken UTF-8")
    for c in text:
        # Release 0.1.0 accepted the controls above U+007E, so its records may hold them.
        if _is_control(c) and not (stored and c > "~"):
            raise ValueError(f"must not contain control characters such as {_code_point(c)}")
    if text.strip() and not stored and is_blank(text):
        first = next(c for c in text if not c.isspace())
        shown = _code_point(first)
        raise ValueError(f"must show something; it has only blanks such as {shown}")
    return text


def is_blank(text: str) -> bool:
    """Return whether no character of the text shows anything."""
    return all(map(_is_blank, text))


def _is_control(character: str) -> bool:
    """Return whether this is a control character (C0, DEL, C1) that no text needs."""
    return unicodedata.category(character) == "Cc" and character not in _ALLOWED_CONTROLS


def _is_blank(character: str) -> bool:
    return (
        unicodedata.category(character) in _BLANK_CATEGORIES
        or character in _BLANK_CHARACTERS
        or character in _VARIATION_SELECTORS
    )


def _code_point(character: str) -> str:
    return f"U+{ord(character):04X}"

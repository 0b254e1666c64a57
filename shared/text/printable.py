"""Make text from outside safe to print: in logs, terminals, records and error sentences.

Input: text that a stranger wrote. Output: text that no terminal obeys and that splits no log line,
and addresses without their credentials. This module imports no other module of the project.
"""

import re
import unicodedata
from typing import Final

_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Controls (C0, DEL, C1), halves of surrogate pairs, and separators of lines and paragraphs."""
_BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text around them, so that it reads differently."""
_CREDENTIALS: Final = re.compile(r"(?<=//)[^\s'\"]*@")
"""Everything up to the last @: a password that is not percent-encoded may hold any character."""
_SECRET_OPTION: Final = re.compile(
    r"([?&;](?:[^=&\s]*(?:password|secret|token|key|credential|signature)[^=&\s]*|sig|auth)=)"
    r"[^&\s'\"]+",
    re.IGNORECASE,
)
"""Also what signs an address for a while: `X-Amz-Signature` and `X-Amz-Credential` of S3, the same
of Google (`X-Goog-…`) and CloudFront (`Signature`), and `sig` of Azure."""
_USER: Final = re.compile(r"(?<=://)[^/?#]*@")
_MASK: Final = "***"


def printable(text: str, max_chars: int = 1_000) -> str:
    """Return `text` with dangerous characters escaped as in Python, cut to `max_chars` characters.

    Escaped are control characters, also line breaks, bidirectional controls and lone surrogates.
    Text that is cut ends in `…`.
    """
    shown = "".join(map(_escape, text[: max_chars + 1]))
    return shown if len(shown) <= max_chars else shown[: max(0, max_chars - 1)] + "…"


def printable_lines(text: str) -> str:
    """Return `text` as `printable` does, but with its line breaks and tabs, and uncut."""
    return "".join(each if each in "\n\t" else _escape(each) for each in text)


def printable_json(text: str) -> str:
    """Return the JSON document `text` with dangerous characters as JSON's `\\u` escapes, uncut."""
    return "".join(
        f"\\u{ord(each):04x}" if each not in "\n\t" and _is_dangerous(each) else each
        for each in text
    )


def mask_credentials(text: str) -> str:
    """Return `text` with user, password and secret options of the addresses in it replaced."""
    return _SECRET_OPTION.sub(rf"\1{_MASK}", _CREDENTIALS.sub(f"{_MASK}@", text))


def mask_fetched_url(url: str) -> str:
    """Return the address of a file that was fetched without user, password and secret options.

    Other than in `mask_url` an @ in its path stays: with an unescaped password that holds a / it
    could not have been fetched.
    """
    return _SECRET_OPTION.sub(rf"\1{_MASK}", _USER.sub(f"{_MASK}@", url, count=1))


def mask_url(url: str) -> str:
    """Return one address without user, password and secret options, however they are spelled."""
    scheme, separator, rest = url.partition("://")
    rest = rest.replace("%40", "@")
    if separator and "@" in rest:
        url = f"{scheme}://{_MASK}@{rest.rpartition('@')[2]}"
    return mask_credentials(url)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as in "1 row" and "2,000 rows"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _is_dangerous(character: str) -> bool:
    return character in _BIDI or unicodedata.category(character) in _ESCAPED_CATEGORIES


def _escape(character: str) -> str:
    if not _is_dangerous(character):
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")

"""Read the licence of a model from its card, the README.md of its folder.

Input: a folder. Output: what the card says in its header, or None. Nothing is concluded from names
or from the text of the card. Source: https://huggingface.co/docs/hub/model-cards
"""

import logging
import re
from itertools import takewhile
from pathlib import Path
from typing import Final

from imagefleet.worker.engine.options.model_options import LICENSE_NAME

log = logging.getLogger(__name__)

CARD: Final = "README.md"
_MAX_CARD_BYTES: Final = 1_000_000
"""No more of a card is read."""
_BORDER: Final = "---"
_FIELD: Final = re.compile(r"(license|license_name):(.*)")
_ITEM: Final = re.compile(r"\s*-\s+(.*)")
_OTHER: Final = "other"
"""The header then has the name of the licence in `license_name`."""


def read_license(folder: Path) -> str | None:
    """Return the licence that the card of a model states, such as `apache-2.0`.

    None: there is no card, its header names no licence, or what it names cannot be shown.
    """
    try:
        with (folder / CARD).open(encoding="utf-8", errors="replace") as card:
            lines = card.read(_MAX_CARD_BYTES).splitlines()
    except OSError:
        return None
    fields = _fields(lines)
    named = fields.get("license") or None
    if named == _OTHER and fields.get("license_name"):
        named = f"{_OTHER} ({fields['license_name']})"
    if named is not None and not LICENSE_NAME.fullmatch(named):
        log.warning("%s: the licence in the header cannot be shown: %.100r", folder / CARD, named)
        return None
    return named


def _fields(lines: list[str]) -> dict[str, str]:
    """Return the fields of the header that are about the licence. A list has blanks between."""
    if not lines or lines[0].strip() != _BORDER:
        return {}
    header = list(takewhile(lambda line: line.strip() != _BORDER, lines[1:]))
    fields = {}
    for number, line in enumerate(header):
        if (found := _FIELD.fullmatch(line)) is None:
            continue
        value = found[2].partition(" #")[0].strip()
        if not value:
            items = map(_ITEM.fullmatch, header[number + 1 :])
            value = ",".join(item[1] for item in takewhile(bool, items) if item)
        words = value.strip("[]").split(",")
        fields[found[1]] = " ".join(filter(None, (word.strip().strip("'\"") for word in words)))
    return fields

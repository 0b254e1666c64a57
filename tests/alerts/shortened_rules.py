"""Shorten the times of the alert rules, so that each can fire within minutes.

Input: the shipped rules and a factor. Output: the same rules, in which every `for`, every window
such as `[15m]` and every threshold of a metric in seconds is divided by the factor; and a list of
what was changed. Nothing else of an expression changes.
"""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW: Final = re.compile(r"(?<=\[)(\d+[smhd])(?=\])")
_THRESHOLD: Final = re.compile(r"(?<=_seconds\) > )(\d+)\b|(?<=_seconds\{)([^}]*\}\) > )(\d+)\b")
"""The number with which a gauge in seconds is compared."""


@dataclass(frozen=True, kw_only=True)
class ShortenedRules:
    """Rules of Prometheus with shorter times."""

    rules: dict[str, Any]
    changes: dict[str, list[str]]
    """What was changed, by alert, as in `for 10m → 20s`."""

    def alerts(self) -> list[str]:
        """Return the names of all alerts in the order of the file."""
        return list(self.changes)


def shorten(file: Path, factor: float) -> ShortenedRules:
    """Divide the times in a file of rules."""
    rules: dict[str, Any] = copy.deepcopy(YAML(typ="safe").load(file))
    changes = {
        rule["alert"]: _shorten(rule, factor)
        for group in rules["groups"]
        for rule in group["rules"]
    }
    return ShortenedRules(rules=rules, changes=changes)


def _shorten(rule: dict[str, Any], factor: float) -> list[str]:
    """Change the rule, and return what was changed."""
    changes: list[str] = []
    if "for" in rule:
        rule["for"] = _divided(rule["for"], factor, "for {} → {}", changes)

    def window(match: re.Match[str]) -> str:
        return _divided(match[1], factor, "[{}] → [{}]", changes)

    def threshold(match: re.Match[str]) -> str:
        before, number = (match[2], match[3]) if match[1] is None else ("", match[1])
        return before + _divided(number + "s", factor, "> {} → > {}", changes).removesuffix("s")

    replacements: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]
    replacements = ((_WINDOW, window), (_THRESHOLD, threshold))
    for pattern, replace in replacements:
        rule["expr"] = pattern.sub(replace, rule["expr"])
    return list(dict.fromkeys(changes))


def _divided(duration: str, factor: float, words: str, changes: list[str]) -> str:
    seconds = int(duration[:-1]) * _UNITS[duration[-1]] / factor
    assert seconds >= 1, f"{duration} / {factor:g} is too short for a scrape in each second"
    shorter = f"{round(seconds)}s"
    changes.append(words.format(duration, shorter))
    return shorter

"""Read a `config.json` of diffusers or transformers strictly.

Input: the parsed JSON. Output: checked values. This module does not depend on the networks: each
network names the fields it reads, and the only supported values of the fields it does not read.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from imagefleet.shared.errors import CheckpointError

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
SILU_NAMES: Final = ("silu", "swish")
"""diffusers calls SiLU by these names (Elfwing et al. 2017; Ramachandran et al. 2017)."""
_COUNTS: Final = {3: "three", 4: "four"}
_MISSING: Final = object()


class ConfigReader:
    """Reads fields one by one, collects their errors, and raises all of them in `finish`."""

    def __init__(self, file: str, config: Json) -> None:
        """Read from `config`; errors name `file`, such as `vae/config.json`."""
        self._file = file
        self._config = config
        self._read: set[str] = set()
        self._errors: list[str] = []

    def get(self, name: str, default: object = _MISSING) -> Any:
        """Return a field, or its default in the library that wrote the file."""
        self._read.add(name)
        value = self._config.get(name, default)
        if value is _MISSING:
            self.add_error(f"{name} is missing")
        return value

    def is_missing(self, name: str) -> bool:
        """Return whether the file lacks a field. One that is null is there."""
        return name not in self._config

    def choice(self, name: str, default: object, allowed: tuple[object, ...]) -> Any:
        """Return a field that must have one of the supported values."""
        value = self.get(name, default)
        self.require_one_of(name, value, allowed)
        return value

    def require_one_of(self, name: str, value: object, allowed: tuple[object, ...]) -> None:
        """Add an error unless `value` is one of the supported values."""
        if value not in allowed:
            self.add_error(unsupported_value(name, value, allowed))

    def add_error(self, sentence: str) -> None:
        """Add an error that `finish` raises."""
        self._errors.append(sentence)

    def require(self, **values: object) -> None:
        """Check fields that change the network and of which one value is supported."""
        for name, value in values.items():
            self.choice(name, value, (value,))

    def ignore(self, *names: str) -> None:
        """Mark fields as known that do not influence inference."""
        self._read.update(names)

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that is true or false."""
        return bool(self.choice(name, default, (True, False)))

    def number(
        self, name: str, default: float, *, above: float = -math.inf, below: float = math.inf
    ) -> float:
        """Return a number between two bounds, or the default.

        For any other value, add an error and return the default.
        """
        value = self.get(name, default)
        if value != default and not _is_between(above, value, below):
            self.add_error(f"{name}={value!r} is not a number{_limits(above, below)}")
            return default
        return float(value)

    def numbers(
        self, name: str, *, length: int, above: float = -math.inf, below: float = math.inf
    ) -> tuple[float, ...] | None:
        """Return a list of `length` numbers between two bounds. None if the file has none."""
        values = self.get(name, None)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or len(values) != length:
            self.add_error(f"{name} is not a list of {length} numbers")
        elif wrong := [value for value in values if not _is_between(above, value, below)]:
            self.add_error(f"{name} has {wrong[0]!r}, which is not a number{_limits(above, below)}")
        else:
            return tuple(float(value) for value in values)
        return None

    def count(self, name: str, default: object = _MISSING, *, minimum: int = 1) -> int:
        """Return a whole number of at least `minimum`. See `checked_count`."""
        return self.checked_count(name, self.get(name, default), minimum)

    def counts(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return a list of whole numbers of at least 1."""
        values = self.get(name, default)
        if not isinstance(values, list | tuple) or not values:
            self.add_error(f"{name}={values!r} is not a list of whole numbers")
            return (1,)
        return tuple(self.checked_count(name, value) for value in values)

    def rotated_axes(
        self, name: str, default: tuple[int, ...], total: tuple[str, int]
    ) -> tuple[int, ...]:
        """Return as many even numbers as in `default`, whose sum is a number with a name: the
        numbers of a head that are rotated by each number of a token's position."""
        axes, count, (of, size) = self.counts(name, default), len(default), total
        if len(axes) != count or sum(axes) != size or any(axis % 2 for axis in axes):
            self.add_error(
                f"{name}={list(axes)} must be {_COUNTS[count]} even numbers whose sum is "
                f"{of}={size}"
            )
            return (2,) * count
        return axes

    def per_level(
        self, name: str, default: object, levels: int, *, minimum: int = 1
    ) -> tuple[int, ...]:
        """Return a count per resolution level; the field holds one for all, or one per level."""
        value = self.get(name, default)
        values = tuple(value) if isinstance(value, list | tuple) else (value,) * levels
        if len(values) != levels:
            self.add_error(f"{name} has {len(values)} entries for {levels} levels")
        return tuple(self.checked_count(name, value, minimum) for value in values)

    def divisor(self, name: str, default: int, *, of: tuple[int, ...]) -> int:
        """Return a count that divides every number in `of`."""
        value = self.count(name, default)
        if any(number % value for number in of):
            self.add_error(f"{name}={value} does not divide all of {list(of)}")
        return value

    def checked_count(self, name: str, value: object, minimum: int = 1) -> int:
        """Return `value` if it is a whole number of at least `minimum`.

        For any other value, add an error and return `minimum`.
        """
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        if value is None:
            self.add_error(f"{name} is missing")
        elif value is not _MISSING:  # `get` has already added an error for a missing field
            self.add_error(f"{name}={value!r} is not a whole number of at least {minimum}")
        return minimum

    def finish(self) -> None:
        """Log a warning about unknown fields.

        Raises:
            CheckpointError: A field is missing or unsupported. The error lists all of them.
        """
        if self._errors:
            raise CheckpointError(
                f"this engine cannot run this checkpoint; {self._file}: " + "; ".join(self._errors)
            )
        unknown = sorted(
            name for name in self._config.keys() - self._read if not name.startswith("_")
        )
        if unknown:
            log.warning("%s: unknown fields %s are ignored", self._file, unknown)


def unsupported_value(name: str, value: object, allowed: tuple[object, ...]) -> str:
    """Return the words that name a field, its value and the supported ones."""
    listed = " or ".join(repr(item) for item in allowed)
    return f"{name}={value!r} (supported: {listed})"


def _is_between(low: float, value: object, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _limits(low: float, high: float) -> str:
    above = "" if low == -math.inf else f" above {low:g}"
    return above + ("" if high == math.inf else f" below {high:g}")

"""Reading a network's `config.json` strictly.

Goes in: the parsed JSON of a diffusers or transformers config. Comes out: checked values. Knows no
network: each one says which fields it reads, and which values of the others it stands for.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from imagefleet.shared.errors import CheckpointError

log = logging.getLogger(__name__)

Json = Mapping[str, Any]
_MISSING: Final = object()


class ConfigReader:
    """Takes fields one by one, collects what is wrong with them, and says it all in `finish`."""

    def __init__(self, network: str, config: Json) -> None:
        self._network = network
        self._config = config
        self._read: set[str] = set()
        self._faults: list[str] = []

    def get(self, name: str, default: object = _MISSING) -> Any:
        """The field, or its default in the library that wrote the file."""
        self._read.add(name)
        value = self._config.get(name, default)
        if value is _MISSING:
            self.fault(f"{name} is missing")
        return value

    def choice(self, name: str, default: object, allowed: tuple[object, ...]) -> Any:
        """The field, which must be one of the values this engine implements."""
        value = self.get(name, default)
        self.one_of(name, value, allowed)
        return value

    def one_of(self, name: str, value: object, allowed: tuple[object, ...]) -> None:
        """Note a fault unless `value` is one of those this engine implements."""
        if value not in allowed:
            listed = " or ".join(repr(item) for item in allowed)
            self.fault(f"{name}={value!r} (implemented: {listed})")

    def fault(self, sentence: str) -> None:
        """Note something else that is wrong."""
        self._faults.append(sentence)

    def fixed(self, **only: object) -> None:
        """Fields that change the network and for which one value is implemented."""
        for name, value in only.items():
            self.choice(name, value, (value,))

    def ignored(self, *names: str) -> None:
        """Fields that say nothing about inference."""
        self._read.update(names)

    def flag(self, name: str, default: bool) -> bool:
        """A field that is true or false."""
        return bool(self.choice(name, default, (True, False)))

    def number(
        self, name: str, default: float, *, above: float = -math.inf, below: float = math.inf
    ) -> float:
        """A number between two others, or the default. If it is not, a fault, and the default
        goes on."""
        value = self.get(name, default)
        if value != default and not _is_between(above, value, below):
            self.fault(f"{name}={value!r} is not a number{_limits(above, below)}")
            return default
        return float(value)

    def numbers(
        self, name: str, *, length: int, above: float = -math.inf, below: float = math.inf
    ) -> tuple[float, ...] | None:
        """So many numbers, each between two others; None where the file is silent."""
        values = self.get(name, None)
        if values is None:
            return None
        if not isinstance(values, list | tuple) or len(values) != length:
            self.fault(f"{name} is not a list of {length} numbers")
        elif wrong := [value for value in values if not _is_between(above, value, below)]:
            self.fault(f"{name} has {wrong[0]!r}, not a number{_limits(above, below)}")
        else:
            return tuple(float(value) for value in values)
        return None

    def count(self, name: str, default: object = _MISSING, *, least: int = 1) -> int:
        """A field that is a whole number of at least `least`. If it is not, a fault, and `least`
        goes on."""
        return self._counted(name, self.get(name, default), least)

    def counts(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A field that is a list of counts."""
        values = self.get(name, default)
        if not isinstance(values, list | tuple) or not values:
            self.fault(f"{name}={values!r} is not a list of whole numbers")
            return (1,)
        return tuple(self._counted(name, value) for value in values)

    def per_level(self, name: str, default: object, levels: int) -> tuple[int, ...]:
        """A count given once, or once for each resolution level."""
        value = self.get(name, default)
        values = tuple(value) if isinstance(value, list | tuple) else (value,) * levels
        if len(values) != levels:
            self.fault(f"{name} has {len(values)} entries for {levels} levels")
        return tuple(self._counted(name, value) for value in values)

    def divisor(self, name: str, default: int, *, of: tuple[int, ...]) -> int:
        """A count that divides every one of `of`."""
        value = self.count(name, default)
        if any(number % value for number in of):
            self.fault(f"{name}={value} does not divide all of {list(of)}")
        return value

    def _counted(self, name: str, value: object, least: int = 1) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        if value is None:
            self.fault(f"{name} is missing")
        elif value is not _MISSING:  # which was said already
            self.fault(f"{name}={value!r} is not a whole number of at least {least}")
        return least

    def finish(self) -> None:
        """
        Raises:
            CheckpointError: every field that is missing or not implemented.
        """
        if self._faults:
            raise CheckpointError(
                f"this engine does not implement the {self._network} of this checkpoint: "
                + "; ".join(self._faults)
            )
        unknown = sorted(
            name for name in self._config.keys() - self._read if not name.startswith("_")
        )
        if unknown:
            log.warning("%s config: unknown fields %s are ignored", self._network, unknown)


def _is_between(low: float, value: object, high: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _limits(low: float, high: float) -> str:
    above = "" if low == -math.inf else f" above {low:g}"
    return above + ("" if high == math.inf else f" below {high:g}")

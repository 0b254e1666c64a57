"""Parse the settings that name files to be read with a model."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from imagefleet.shared.errors import ConfigurationError


class NamedOption(Protocol):
    """It is an option that a setting lists by name."""

    @property
    def name(self) -> str: ...


Option = TypeVar("Option", bound=NamedOption)


def parse_options(
    texts: Sequence[str],
    parse: Callable[[str], Option],
    *,
    setting: str,
    unique: str | None = None,
) -> tuple[Option, ...]:
    """Parse each text of a setting.

    Args:
        texts: what the setting lists.
        parse: parses one text, and raises ValueError if it is wrong.
        setting: environment variable, for errors.
        unique: what the names are, for errors, if no two may be equal.

    Raises:
        ConfigurationError: one of them is wrong, or two have the same name.
    """
    try:
        options = tuple(parse(text) for text in texts)
    except ValueError as error:
        raise ConfigurationError(f"{setting}: {error}") from None
    for name, count in Counter(option.name for option in options).items():
        if unique and count > 1:
            raise ConfigurationError(f"{setting}: two files have the {unique} {name!r}")
    return options

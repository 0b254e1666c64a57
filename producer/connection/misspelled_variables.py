"""Find environment variables that look like mistyped settings of a producer."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Final

from imagefleet.shared.settings.settings import ENV_PREFIX, Settings

_MIN_SIMILARITY: Final = 0.75
"""A variable at least this similar to a setting's name is taken for a typing error. The settings of
workers, which may be set here too, are less similar."""


_OF_GATEWAYS: Final = "http_"


def misspelled_variable_warnings(
    variables: Iterable[str], kind: type[Settings] = Settings
) -> Iterator[str]:
    """Yield a warning for each of `variables` that looks like a mistyped setting.

    Args:
        kind: the settings of this process. Those of a gateway, beside a producer's, are compared
            only with variables that begin as they do.
    """
    for name in variables:
        own = name.upper().removeprefix(ENV_PREFIX).lower()
        known = (kind if own.startswith(_OF_GATEWAYS) else Settings).model_fields
        if own == name.lower() or own in kind.model_fields:
            continue
        if nearest := get_close_matches(own, known, n=1, cutoff=_MIN_SIMILARITY):
            yield f"{name} is not a setting; did you mean {ENV_PREFIX}{nearest[0].upper()}?"

"""Find environment variables that look like settings of a worker, and are none."""

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from imagefleet.shared.settings.settings import ENV_PREFIX
from imagefleet.worker.settings.worker_settings import WorkerSettings


def unknown_variable_warnings(variables: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each of `variables` that has our prefix and names no setting."""
    for name in variables:
        own = name.upper().removeprefix(ENV_PREFIX).lower()
        if own != name.lower() and own not in WorkerSettings.model_fields:
            nearest = get_close_matches(own, WorkerSettings.model_fields, n=1)
            hint = f"; did you mean {ENV_PREFIX}{nearest[0].upper()}?" if nearest else ""
            yield f"{name} is not a setting{hint}"

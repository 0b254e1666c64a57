"""Say which jobs a search finds, by single fields of their records.

A search looks at thousands of records, so they are not read as a whole: state and request suffice,
and the result if the model matters. This module reads nothing from Redis.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagefleet.producer.gateway.jobs.timeline import EVER, Span
from imagefleet.shared.jobs.model import State


@dataclass(frozen=True, kw_only=True)
class WantedJobs:
    """A search finds the jobs for which all of this holds. None: it does not matter."""

    state: State | None = None
    model: str | None = None
    """The jobs named it, or were made by it."""
    lora: str | None = None
    seed: int | None = None
    prompt: str | None = None
    """The prompt has this part, in capital or small letters."""
    starred: bool | None = None
    span: Span = EVER
    """They were submitted in this time."""

    @property
    def is_plain(self) -> bool:
        """Return whether every job is found that is in the list, or in that of starred jobs."""
        return self.state is None and self.starred is not False and self.fields == ("state",)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields of a record that `accepts` needs, in their order."""
        asks = (self.model, self.lora, self.seed, self.prompt)
        if all(each is None for each in asks):
            return ("state",)
        return ("state", "request") if self.model is None else ("state", "request", "result")

    def accepts(self, values: Sequence[str | None]) -> bool:
        """Return whether a job is found.

        Args:
            values: of the `fields` of its record; None stands for one that it does not have.
                Anybody may have written there, so what cannot be read is not found.
        """
        state, *texts = values
        if state is None or (self.state is not None and state != self.state):
            return False
        if not texts:
            return True
        request, *results = (_parse(text) for text in texts)
        return self._accepts(request, results[0] if results else {})

    def _accepts(self, request: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
        return (
            self.model in (None, request.get("model") or result.get("model"))
            and (self.lora is None or self.lora in _lora_names(request.get("loras")))
            and self.seed in (None, request.get("seed"))
            and (
                self.prompt is None
                or self.prompt.casefold() in str(request.get("prompt", "")).casefold()
            )
        )


def _parse(text: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _lora_names(pairs: object) -> list[object]:
    if not isinstance(pairs, list):
        return []
    return [pair[0] for pair in pairs if isinstance(pair, list) and pair]

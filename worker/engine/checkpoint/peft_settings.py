"""Read the settings of PEFT that diffusers keeps in the header of a LoRA file.

Input: the header's text. Output: alpha of each layer. Settings that ask for another kind of LoRA
are refused.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.shared.text.printable import printable

_FIELD: Final = "lora_adapter_metadata"
"""The header of a file has the settings in this field."""
_NOT_MERGED: Final = ("use_dora", "use_rslora", "lora_bias")
_ORDINARY_STARTS: Final = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of `init_lora_weights` that leave the model's own weights as they are."""
_DEFAULT_ALPHA: Final = 8.0
"""PEFT uses this `lora_alpha` if the settings have none."""
_REPEAT: Final = re.compile(r"[*+{]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]")
_MAX_REPEATS: Final = 3
"""A match of a name with 80 characters takes at most some 1e6 steps with so many."""


class PeftSettings:
    """It has the settings of one file."""

    def __init__(self, path: Path, header: Mapping[str, str]) -> None:
        """Read the settings from the header of the file at `path`.

        Raises:
            CheckpointError: They are damaged, or ask for what this engine does not merge.
        """
        self._path = path
        self._fields = self._read(header.get(_FIELD, ""))
        self._check()
        self._patterns = {
            name.removesuffix(".alpha_pattern"): self._alphas_by_pattern(name, value)
            for name, value in self._fields.items()
            if name.endswith(".alpha_pattern")
        }

    def alpha(self, network: str, names: Sequence[str]) -> float | None:
        """Return alpha of a layer of a network. None: the file has no settings.

        As PEFT does it, the first pattern decides that fits the end of one of the layer's names.
        """
        if not self._fields:
            return None
        for pattern, alpha in self._patterns.get(network, {}).items():
            if any(pattern.match(name) for name in names):
                return alpha
        name = f"{network}.lora_alpha"
        return self._number(name, self._fields.get(name, _DEFAULT_ALPHA))

    def _read(self, text: str) -> dict[str, Any]:
        fields: Any = {}
        try:
            fields = json.loads(text) if text else {}
        except (ValueError, RecursionError) as error:
            raise self._error(
                f"the header's {_FIELD} is no JSON ({error}); save it again"
            ) from None
        if not isinstance(fields, dict):
            raise self._error(f"the header's {_FIELD} is no JSON object; save it again")
        return fields

    def _check(self) -> None:
        for name, value in self._fields.items():
            setting = name.partition(".")[2]
            if setting in _NOT_MERGED and value:
                raise self._error(f"{name}={value!r}, which is not supported")
            if setting == "init_lora_weights" and value not in _ORDINARY_STARTS:
                raise self._error(
                    f"{name}={value!r} changes the model's own weights, which is not done here; "
                    "convert the file to an ordinary LoRA with PEFT's save_pretrained("
                    "path_initial_model_for_weight_conversion=…)"
                )

    def _alphas_by_pattern(self, name: str, patterns: object) -> dict[re.Pattern[str], float]:
        if not isinstance(patterns, dict):
            if patterns is None:
                return {}
            raise self._error(f"{name}={patterns!r} is no JSON object; save it again")
        return {
            self._compile(name, pattern): self._number(f"{name} {pattern!r}", value)
            for pattern, value in patterns.items()
        }

    def _compile(self, name: str, pattern: str) -> re.Pattern[str]:
        """Return the expression with which PEFT matches a pattern, if it matches in little time."""
        if _REPEATED_GROUP.search(pattern) or len(_REPEAT.findall(pattern)) > _MAX_REPEATS:
            raise self._error(
                f"{name} has {pattern!r}, which may take hours to match: it repeats a group, or "
                f"more than {_MAX_REPEATS} parts; write out the names of the layers"
            )
        try:
            return re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, OverflowError, RecursionError) as error:
            raise self._error(
                f"{name} has {pattern!r}, which is no regular expression ({error})"
            ) from None

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with suppress(OverflowError):  # a whole number may have any number of digits
                if math.isfinite(number := float(value)):
                    return number
        raise self._error(f"{name}={value!r} is no finite number; save it again")

    def _error(self, sentence: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {printable(sentence)}")

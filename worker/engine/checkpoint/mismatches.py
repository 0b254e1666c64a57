"""Say why weights do not match a network.

Input: the keys that do not match. Output: sentences. This module reads no files.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_LISTED: Final = 5
"""An error lists at most this many keys. The first ones show what is wrong."""
_FOREIGN_KEYS: Final = (
    (
        r"\bmodel\.diffusion_model\.|\bfirst_stage_model\.|\bcond_stage_model\.|\binput_blocks\.",
        "a checkpoint in the original format of one file; give that file as the model",
    ),
    (
        r"\blora_|\.lora_(A|B|up|down)\b|\.lora\.(up|down)\b",
        "a LoRA, which is no whole model; load its base model and set IMAGEFLEET_LORA",
    ),
    (
        r"\bmotion_modules\.|\btransformer_in\.|\btemp_(convs|attentions)\.",
        "a video model, which this engine does not run",
    ),
    (
        r"\bscaled_fp8\b|\.scale_(weight|input)\b|\.(weight|input)_scale\b",
        "a model in fp8 whose weights have scales of their own, which this engine does not read; "
        "plain fp8 is read",
    ),
    (r"\bcontrolnet_|\bip_adapter\b", "a ControlNet or an IP adapter, not the network itself"),
)
"""Files of other kinds have keys of these patterns. The second entry says what the file is."""


@dataclass(frozen=True)
class Mismatches:
    """It lists what does not match between a network and its weight files."""

    lines: list[str]
    """It has a sentence for every key that does not match."""
    reason: str
    """It is the likely reason, if there is any such key."""


def foreign_kind(keys: Iterable[str], *, is_one_file: bool = False) -> str | None:
    """Return what a file of these keys is, if it is none of a whole network's weights.

    `is_one_file` says that the file is expected to be in the original format of one file.
    """
    listed = " ".join(keys)
    patterns = _FOREIGN_KEYS[1:] if is_one_file else _FOREIGN_KEYS
    return next((kind for pattern, kind in patterns if re.search(pattern, listed)), None)


def likely_reason(network: str, stored_keys: Iterable[str], missing: float) -> str:
    """Return why the keys of a network's files do not match.

    Args:
        network: The network's folder.
        stored_keys: The keys in its files.
        missing: The share of the network's weights that the files lack.
    """
    if kind := foreign_kind(stored_keys):
        return f"the file of {network} looks like {kind}"
    if missing == 1:
        return f"the file of {network} has none of its weights: it is of another network"
    return f"{network}/config.json and the file of {network} are of different models"


def mismatch_message(found: Sequence[Mismatches]) -> str:
    """Return an error that lists the first mismatches, their number and the likely reasons."""
    lines = [line for mismatches in found for line in mismatches.lines]
    reasons = "; ".join(mismatches.reason for mismatches in found if mismatches.lines)
    listed = lines[:_LISTED]
    if len(lines) > _LISTED:
        listed.append(f"and {len(lines) - _LISTED} more")
    return (
        f"{len(lines)} weights do not match the configs of this checkpoint ({reasons}); "
        "take weights and configs from the same model:\n  " + "\n  ".join(listed)
    )

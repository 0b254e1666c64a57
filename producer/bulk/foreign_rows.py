"""Make rows of what other tools say of an image: translate its parameters, name what has no equal.

Input: names and values of a tool. Output: a row, and notes of what it leaves out. This
module reads no files.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from imagefleet.producer.bulk.notes import Notes
from imagefleet.shared.jobs.cfg_scale import guidance_scale_of
from imagefleet.shared.jobs.foreign_names import (
    FOREIGN_NAMES,
    ForeignName,
    plain_name,
    scheduler_called,
)
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS

SCHEDULE: Final = "schedule_type"
"""It holds the noise levels of a sampler, which the web UI and ComfyUI separate from its name."""
PLAIN_SCHEDULES: Final = frozenset({"", "automatic", "uniform", "normal", "discrete"})
"""They are names of the noise levels that a model has by itself."""
_MAX_DIGITS: Final = 9
_COUNTS: Final = "num_images_per_prompt"
_GUIDANCE: Final = "guidance_scale"
_LORA: Final = re.compile(r"\s{0,9}<lora:([^:<>]+):([^:<>]+)(?::[^<>]*)?>")
_NETWORK: Final = re.compile(r"\s{0,9}<(?:hypernet|lyco|lora):[^<>]*>")
_WEIGHT: Final = re.compile(r"\([^()]*:\s*[\d.]+\)|\(\([^()]+\)\)")


def translated(given: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the row for the parameters of another tool, by their names there.

    `<lora:style:0.8>` in the prompt becomes a LoRA, and the counts of several loops are multiplied.
    """
    row: dict[str, Any] = {}
    for name, value in given.items():
        plain = plain_name(name)
        foreign = FOREIGN_NAMES.get(plain)
        if plain == SCHEDULE or value is None or (foreign is not None and foreign.detail_of):
            continue
        if plain == "model" or (foreign is not None and foreign.ours == "model"):
            notes.leave_out("model", value)  # a file of that tool; one of ours makes all rows
        elif foreign is None and plain in PARAMETERS:
            row[plain] = value
        elif (own := _converted(foreign, value)) is None:
            if foreign is None or str(value).lower() not in foreign.neutral:
                notes.leave_out(name, value)
        elif _COUNTS in own and _COUNTS in row:
            row[_COUNTS] = _product(row[_COUNTS], own[_COUNTS])
        else:
            row |= _with_our_guidance(own, notes)
    _set_schedule(row, given, notes)
    if isinstance(row.get("prompt"), str):
        _take_networks(row, notes)
    return row


def _converted(foreign: ForeignName | None, value: Any) -> Mapping[str, Any] | None:
    if foreign is None or not foreign.ours:
        return None
    return {foreign.ours: value} if foreign.convert is None else foreign.convert(value)


def _with_our_guidance(own: Mapping[str, Any], notes: Notes) -> Mapping[str, Any]:
    if _GUIDANCE not in own:
        return own
    return {**own, _GUIDANCE: guidance_scale_of(own[_GUIDANCE], notes.unguided_scale)}


def _product(one: Any, other: Any) -> Any:
    """Return the product of two counts, or the one that is no number, which rejects the row."""
    for count in (one, other):
        if not str(count).isdecimal() or len(str(count)) > _MAX_DIGITS:
            return count
    return int(one) * int(other)


def _set_schedule(row: dict[str, Any], given: Mapping[str, Any], notes: Notes) -> None:
    """Choose the scheduler with the noise levels that the tool names, if there is one."""
    schedule = next((str(v) for name, v in given.items() if plain_name(name) == SCHEDULE), "")
    if schedule.lower() in PLAIN_SCHEDULES:
        return
    found = scheduler_called(str(row.get("scheduler", "")), schedule)
    if found is None:
        notes.leave_out("Schedule type", schedule)
    else:
        row["scheduler"] = found


def _take_networks(row: dict[str, Any], notes: Notes) -> None:
    """Move the LoRA in a prompt to the parameter."""
    prompt = row["prompt"]
    if found := [f"{name}:{scale}" for name, scale in _LORA.findall(prompt)]:
        row["loras"] = ",".join(found)
        prompt = _LORA.sub("", prompt)
    for network in _NETWORK.findall(prompt):
        notes.leave_out(network.strip())
    row["prompt"] = _NETWORK.sub("", prompt).strip()
    if "prompt_weighting" not in row and (weight := _WEIGHT.search(prompt)):
        notes.say(f"weights such as {weight[0]} count only with --prompt-weighting")

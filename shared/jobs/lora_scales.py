"""Check the LoRA of a job: names of files that the workers hold, each with a scale.

Input: what a caller gives, pairs or a text. Output: pairs in the order of their names, so that two
spellings of one mixture are the same job. `shared.jobs.admission` checks whether the workers hold
these files.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from imagefleet.shared.jobs.model import QueueSafeName

MAX_LORAS: Final = 16
MAX_LORA_SCALE: Final = 10.0
_FORM: Final = (
    "must be pairs of a name and a scale, as in [('style', 0.8)], or a text like 'style:0.8,other'"
)


def parse_pairs(value: object) -> object:
    """Return the pairs in a text `name:scale,name`, and check that any other value is pairs.

    A name without a scale has the scale 1.

    Raises:
        ValueError: `value` has another form.
    """
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
        return [_parse_word(word) for word in words if word]
    if isinstance(value, list | tuple) and all(map(_is_pair, value)):
        return value
    raise ValueError(_FORM)


def _is_pair(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2


def _parse_word(word: str) -> tuple[str, str]:
    name, colon, scale = word.partition(":")
    if colon and not _is_scale(scale):
        limit = f"a number from {-MAX_LORA_SCALE:g} to {MAX_LORA_SCALE:g}, as in 'style:0.8'"
        raise ValueError(f"the scale {scale.strip()!r} of {name.strip()!r} must be {limit}")
    return name.strip(), scale if colon else "1"


def _is_scale(text: str) -> bool:
    try:
        return abs(float(text)) <= MAX_LORA_SCALE
    except ValueError:
        return False


def _check_names(pairs: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    names = [name for name, _ in pairs]
    if len(names) > MAX_LORAS:
        raise ValueError(f"must be at most {MAX_LORAS}")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"names {name!r} twice; give each LoRA one scale")
    return tuple(sorted(pairs))


LoraScale = tuple[
    QueueSafeName,
    Annotated[float, Field(ge=-MAX_LORA_SCALE, le=MAX_LORA_SCALE, allow_inf_nan=False)],
]
_PAIR_SCHEMA: Final = {
    "type": "array",
    "prefixItems": [
        {"type": "string"},
        {"type": "number", "minimum": -MAX_LORA_SCALE, "maximum": MAX_LORA_SCALE},
    ],
    "minItems": 2,
    "maxItems": 2,
}
LoraScales = Annotated[
    tuple[LoraScale, ...],
    BeforeValidator(parse_pairs),
    AfterValidator(_check_names),
    WithJsonSchema({"type": ["array", "string"], "items": _PAIR_SCHEMA, "maxItems": MAX_LORAS}),
]
"""It holds name and scale of each LoRA."""

"""Read the keys of LoRA files in diffusers', PEFT's and kohya's formats.

Input: a key. Output: the name of its layer and the part that it is. The family of a model
defines the names of its layers.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


class LoraNames(Protocol):
    """It says how LoRA files name the layers of a family's models."""

    @property
    def networks(self) -> Sequence[str]:
        """Return the networks to which a LoRA may be added."""

    @property
    def widened(self) -> Sequence[str]:
        """Return the keys of weights that have more inputs in some models of the family. There, a
        LoRA of the others changes the first inputs."""

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""

    def fused(self, network: str, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return the keys of the weights that a file may have as one layer, by its name. The
        outputs of the layer are those of the weights, one after another. A layer without weights
        is one of other models of the family, and is left out."""

    def spellings(self, network: str, layer: str) -> Sequence[str]:
        """Return the names within a network that the patterns of PEFT may mean by a layer."""

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what an error says about a file that mixes formats, as in "names … twice". None
        means that it does not mix them."""


_PARTS: Final = (
    (
        "down",
        r"\.lora_down|\.lora_A(\.default)?|_lora\.down|\.lora(_linear_layer)?\.down"
        r"|(?<=_lora[12])\.down",
    ),
    (
        "up",
        r"\.lora_up|\.lora_B(\.default)?|_lora\.up|\.lora(_linear_layer)?\.up|(?<=_lora[12])\.up",
    ),
)
_KINDS: Final = (
    (r"\.dora_scale$|lora_magnitude_vector", "a DoRA"),
    (r"\.hada_", "a LoHa"),
    (r"\.lokr_", "a LoKr"),
    (r"\.lora_mid\.", "a LoRA with a third factor"),
    (r"\.oft_|\.boft_", "an OFT"),
    (
        r"\.(query|key)_norm\.scale$",
        "a LoRA that also replaces norms, as those of FLUX.1's controls",
    ),
    (r"\.diff(_b)?$|\.lora_B\.bias$", "a file with whole differences or biases"),
)
"""A file that is no plain LoRA has keys of these patterns. The second entry says what the file
is."""


@dataclass(frozen=True)
class LoraKey:
    """It has what a key of a LoRA file says."""

    layer: str
    part: str
    """It is `down`, `up` or `alpha`."""


def parse_key(key: str) -> LoraKey | None:
    """Return the layer and the part of a key. None: it is of no known format."""
    if key.endswith(".alpha"):
        return LoraKey(key.removesuffix(".alpha"), "alpha")
    for part, pattern in _PARTS:
        if match := re.fullmatch(rf"(.+?)(?:{pattern})\.weight", key):
            return LoraKey(match[1], part)
    return None


def unsupported_kind(keys: Iterable[str]) -> str | None:
    """Return what the file is, if it is no plain LoRA."""
    listed = "\n".join(keys)
    kinds = (kind for pattern, kind in _KINDS if re.search(pattern, listed, re.MULTILINE))
    return next(kinds, None)

"""Name the layers of FLUX.2 klein as LoRA files do.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from imagefleet.worker.engine.families.flux2_klein.configs import TRANSFORMER

_DIFFUSERS_PREFIX: Final = f"{TRANSFORMER}."


class Flux2KleinLoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks: Sequence[str] = (TRANSFORMER,)

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        return {
            _DIFFUSERS_PREFIX + key.removesuffix(".weight"): key
            for key in keys
            if key.endswith(".weight")
        }

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the name of a layer within its network."""
        return [layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return None: there is one format."""
        return None


LORA_NAMES: Final = Flux2KleinLoraNames()

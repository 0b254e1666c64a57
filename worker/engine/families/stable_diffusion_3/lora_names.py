"""Name the layers of Stable Diffusion 3 as LoRA files do, in diffusers' format.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files. diffusers reads no other format of this family: of a file with
kohya's names it reads nothing, and raises no error.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from imagefleet.worker.engine.families.stable_diffusion_3.parts import CLIPS, TRANSFORMER

_OF_CLIP: Final = re.compile(r"encoder\.layers\.\d+\.(self_attn\.\w+_proj|mlp\.fc[12])")
_FACTOR: Final = re.compile(r".+\.lora_[AB]\.weight")


class StableDiffusion3LoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks: Sequence[str] = (TRANSFORMER, *CLIPS)
    widened: Sequence[str] = ()

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        layers = (key.removesuffix(".weight") for key in keys if key.endswith(".weight"))
        return {
            f"{network}.{name}": f"{layer}.weight"
            for layer in layers
            if network == TRANSFORMER or _OF_CLIP.fullmatch(layer)
            for name in self.spellings(network, layer)
        }

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return nothing: no layer of a file stands for several weights."""
        return {}

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the name of a layer within its network, which transformers gives a prefix."""
        return [layer if network == TRANSFORMER else f"text_model.{layer}"]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that diffusers would refuse, or read in part only."""
        if other := next((key for key in sorted(keys) if not _FACTOR.fullmatch(key)), None):
            return f"has {other}, but diffusers reads keys with lora_A and lora_B alone"
        for clip in CLIPS:
            layers = [key for key in keys if key.startswith(f"{clip}.")]
            if layers and not any(".self_attn." in layer for layer in layers):
                return f"has no layer of attention of {clip}, without which diffusers refuses it"
        return None


LORA_NAMES: Final = StableDiffusion3LoraNames()

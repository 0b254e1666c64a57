"""Name the layers of Z-Image as LoRA files do: diffusers', ai-toolkit's and kohya's formats.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from imagefleet.worker.engine.families.z_image.configs import TRANSFORMER

_DIFFUSERS_PREFIX: Final = f"{TRANSFORMER}."
_AI_TOOLKIT_PREFIX: Final = "diffusion_model."
_KOHYA_PREFIX: Final = "lora_unet_"
_OUT: Final = "attention.to_out.0"
_OTHER_OUT: Final = "attention.out"
"""The program in which Z-Image was trained has this name of the last layer of attention."""


class ZImageLoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks: Sequence[str] = (TRANSFORMER,)

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        names = {}
        for key in keys:
            if not key.endswith(".weight"):
                continue
            layer = key.removesuffix(".weight")
            names[_DIFFUSERS_PREFIX + layer] = key
            for each in (layer, layer.replace(_OUT, _OTHER_OUT)):
                names[_AI_TOOLKIT_PREFIX + each] = key
                names[_KOHYA_PREFIX + each.replace(".", "_")] = key
        return names

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return nothing: no layer of a file stands for several weights."""
        return {}

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the name of a layer within its network."""
        return [layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that has names of diffusers beside what only the other
        formats have. diffusers then takes none of them for a name of its own."""
        listed = list(keys)
        named = any(key.startswith(_DIFFUSERS_PREFIX) for key in listed)
        others = (_AI_TOOLKIT_PREFIX, _KOHYA_PREFIX)
        is_other = any(
            key.endswith(".alpha") or key.startswith(others) or ".default." in key for key in listed
        )
        if named and is_other:
            return (
                f"names layers with {_DIFFUSERS_PREFIX!r} as diffusers does, but has an alpha or "
                "names of another format, with which diffusers would drop them"
            )
        return None


LORA_NAMES: Final = ZImageLoraNames()

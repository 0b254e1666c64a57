"""Name the layers of Stable Diffusion as LoRA files do: diffusers', PEFT's and kohya's formats.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import UNET_PREFIX, origins

_KOHYA_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "unet": ("lora_unet_",),
    "text_encoder": ("lora_te_", "lora_te1_"),
    "text_encoder_2": ("lora_te2_",),
}
_ATTENTION: Final = {"to_out.0": "to_out", "out_proj": "to_out"}
"""diffusers' older files have these other names of attention layers."""


class StableDiffusionLoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks = tuple(_KOHYA_PREFIXES)
    widened: Sequence[str] = ()

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        names = {}
        layers = {key.removesuffix(".weight"): key for key in keys if key.endswith(".weight")}
        for layer, key in layers.items():
            names.update(dict.fromkeys(_names(network, layer), key))
        if network == "unet":
            # kohya trains SDXL with the layers of the original format.
            for key, origin in origins(network, keys, ()).items():
                layer = origin.key.removeprefix(UNET_PREFIX).removesuffix(".weight")
                if key.endswith(".weight"):
                    names[f"lora_unet_{layer.replace('.', '_')}"] = key
        return names

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return nothing: no layer of a file stands for several weights."""
        return {}

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the names of a layer within its network. transformers once had a prefix, and files
        still have it."""
        return [layer] if network == "unet" else [f"text_model.{layer}", layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that has kohya's names of both formats of SDXL."""
        named = [key.removeprefix("lora_unet_") for key in keys if key.startswith("lora_unet_")]
        original = ("input_blocks", "middle_block", "output_blocks")
        if any(key.startswith(original) for key in named) and any(
            key.startswith(("down_blocks", "mid_block", "up_blocks")) for key in named
        ):
            return (
                "names layers of the UNet in the original format and in that of diffusers, which "
                "would drop the former"
            )
        return None


def _names(network: str, layer: str) -> Iterator[str]:
    is_text = network != "unet"
    for each in LORA_NAMES.spellings(network, layer):
        yield f"{network}.{each}"
        for prefix in _KOHYA_PREFIXES[network]:
            yield prefix + each.replace(".", "_")
        if match := re.fullmatch(r"(.+)\.(to_[qkv]|to_out\.0|[qkv]_proj|out_proj)", each):
            leaf = _ATTENTION.get(match[2], match[2])
            leaf = re.sub(r"([qkv])_proj", r"to_\1", leaf)
            yield f"{network}.{match[1]}.{leaf}"
            yield f"{network}.{match[1]}.processor.{leaf}"
            if not is_text:
                yield f"{match[1]}.processor.{leaf}"


LORA_NAMES: Final = StableDiffusionLoraNames()

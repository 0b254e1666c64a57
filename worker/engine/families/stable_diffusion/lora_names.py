"""Name the layers of a network as LoRA files do: diffusers', PEFT's and kohya's formats.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.families.stable_diffusion.original_format import UNET_PREFIX, origins

_KOHYA_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "unet": ("lora_unet_",),
    "text_encoder": ("lora_te_", "lora_te1_"),
    "text_encoder_2": ("lora_te2_",),
}
_ATTENTION: Final = {"to_out.0": "to_out", "out_proj": "to_out"}
"""Names of attention layers in diffusers' older files, where they differ."""
_PARTS: Final = (
    ("down", r"\.lora_down|\.lora_A(\.default)?|_lora\.down|\.lora(_linear_layer)?\.down"),
    ("up", r"\.lora_up|\.lora_B(\.default)?|_lora\.up|\.lora(_linear_layer)?\.up"),
)
_KINDS: Final = (
    (r"\.dora_scale$|lora_magnitude_vector", "a DoRA"),
    (r"\.hada_", "a LoHa"),
    (r"\.lokr_", "a LoKr"),
    (r"\.lora_mid\.", "a LoRA with a third factor"),
    (r"\.oft_|\.boft_", "an OFT"),
    (r"\.diff(_b)?$|\.lora_B\.bias$", "a file with whole differences or biases"),
)
"""Patterns of keys of files that are no plain LoRA, and what such a file is."""


@dataclass(frozen=True)
class LoraKey:
    """What a key of a LoRA file says."""

    layer: str
    part: str
    """`down`, `up` or `alpha`."""


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


def mixes_formats(keys: Iterable[str]) -> bool:
    """Return whether kohya's names of the UNet's layers are of both formats of SDXL."""
    named = [key.removeprefix("lora_unet_") for key in keys if key.startswith("lora_unet_")]
    original = ("input_blocks", "middle_block", "output_blocks")
    return any(key.startswith(original) for key in named) and any(
        key.startswith(("down_blocks", "mid_block", "up_blocks")) for key in named
    )


def layer_names(network: str, keys: Sequence[str]) -> dict[str, str]:
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


def _names(network: str, layer: str) -> Iterator[str]:
    is_text = network != "unet"
    # transformers once had this prefix, and files still have it.
    spelled = [f"text_model.{layer}", layer] if is_text else [layer]
    for each in spelled:
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

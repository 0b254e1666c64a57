"""Name the layers of Z-Image as LoRA files do: diffusers', ai-toolkit's and kohya's formats.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from imagefleet.worker.engine.families.z_image.configs import TRANSFORMER

_DIFFUSERS_PREFIX: Final = f"{TRANSFORMER}."
_AI_TOOLKIT_PREFIX: Final = "diffusion_model."
_KOHYA_PREFIX: Final = "lora_unet_"
_OUT: Final = "attention.to_out.0"
_ORIGINAL_OUT: Final = "attention.out"
"""The program in which Z-Image was trained has this name of the last layer of attention."""
_ORIGINAL_QKV: Final = "attention.qkv"
"""That program has one layer for queries, keys and values."""
_QUERY: Final = "attention.to_q.weight"
_FORMS: Final = (
    ("lora_A", r"\.lora_[AB]\."),
    ("lora_down", r"\.lora_(down|up)\."),
    ("lora.down", r"\.lora\.(down|up)\."),
)
"""A file names all its factors in one of these forms."""


class ZImageLoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks: Sequence[str] = (TRANSFORMER,)
    widened: Sequence[str] = ()

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        names = {}
        for key in keys:
            if not key.endswith(".weight"):
                continue
            layer = key.removesuffix(".weight")
            names[_DIFFUSERS_PREFIX + layer] = key
            for each in (layer, layer.replace(_OUT, _ORIGINAL_OUT)):
                names |= dict.fromkeys(_with_prefixes(each), key)
        return names

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the keys that lie one after another in a layer of a file, by its name."""
        names: dict[str, tuple[str, ...]] = {}
        for block in (key.removesuffix(_QUERY) for key in keys if key.endswith(_QUERY)):
            weights = tuple(f"{block}attention.to_{each}.weight" for each in "qkv")
            names |= dict.fromkeys(_with_prefixes(block + _ORIGINAL_QKV), weights)
        return names

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the name of a layer within its network."""
        return [layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that diffusers would read in part only, or refuse."""
        listed = list(keys)
        named = [key for key in listed if key.startswith(_DIFFUSERS_PREFIX)]
        others = (_AI_TOOLKIT_PREFIX, _KOHYA_PREFIX)
        is_other = any(
            key.endswith(".alpha") or key.startswith(others) or ".default." in key for key in listed
        )
        if named and is_other:
            return (
                f"names layers with {_DIFFUSERS_PREFIX!r} as diffusers does, but has an alpha or "
                "names of another format, with which diffusers would drop them"
            )
        if not is_other and len(named) < len(listed):
            return "names layers without a prefix and has no alpha, so that diffusers drops them"
        forms = [form for form, _ in _FORMS]
        if named:
            forms.remove("lora_down")
        is_kohya = any(key.startswith(_KOHYA_PREFIX) for key in listed)
        if is_kohya:
            forms.remove("lora_A")
        return _wrong_form(listed, forms, is_kohya=is_kohya)


def _wrong_form(keys: Sequence[str], forms: Sequence[str], *, is_kohya: bool) -> str | None:
    """Return what is wrong with the names of the factors. `forms` are those that a file of this
    format may have."""
    factors = [key for key in keys if not key.endswith(".alpha")]
    found = [form for form, pattern in _FORMS if all(re.search(pattern, key) for key in factors)]
    if not found or found[0] not in forms:
        return f"must name all its factors as {' or '.join(forms)}; diffusers would refuse others"
    needs = {_ORIGINAL_OUT: ("lora_down", "lora.down"), _ORIGINAL_QKV: ("lora.down",)}
    for layer, its_forms in needs.items():
        if not is_kohya and found[0] not in its_forms and any(f"{layer}." in key for key in keys):
            return f"has {layer}, which diffusers reads as {' or '.join(its_forms)} only"
    return None


def _with_prefixes(layer: str) -> list[str]:
    """Return the names of a layer in all formats but that of diffusers."""
    return [_AI_TOOLKIT_PREFIX + layer, _KOHYA_PREFIX + layer.replace(".", "_"), layer]


LORA_NAMES: Final = ZImageLoraNames()

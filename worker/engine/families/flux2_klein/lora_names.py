"""Name the layers of FLUX.2 klein as LoRA files do: diffusers', ai-toolkit's and kohya's formats.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files. The last two formats have the names of the program in which the
model was trained, where queries, keys and values of a double block are one layer.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from imagefleet.worker.engine.families.flux2_klein.configs import TRANSFORMER

_DIFFUSERS_PREFIX: Final = f"{TRANSFORMER}."
_AI_TOOLKIT_PREFIXES: Final = ("diffusion_model.", "base_model.model.")
"""The second one is PEFT's. diffusers reads both alike."""
_KOHYA_PREFIX: Final = "lora_unet_"
_BLOCK: Final = re.compile(r"(single_)?transformer_blocks\.(\d+)\.(.+)")
_OF_DOUBLE_BLOCKS: Final[Mapping[str, str]] = {
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.linear_in": "img_mlp.0",
    "ff.linear_out": "img_mlp.2",
    "ff_context.linear_in": "txt_mlp.0",
    "ff_context.linear_out": "txt_mlp.2",
}
_OF_SINGLE_BLOCKS: Final[Mapping[str, str]] = {
    "attn.to_qkv_mlp_proj": "linear1",
    "attn.to_out": "linear2",
}
_FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
}
_IN_BOTH: Final[Mapping[str, str]] = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
    "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
    "proj_out": "final_layer.linear",
}
"""Both formats have these layers outside the blocks. diffusers drops others in kohya's format."""
_IN_AI_TOOLKIT: Final[Mapping[str, str]] = {
    f"{name}.linear": f"{name}.lin"
    for name in (
        "double_stream_modulation_img",
        "double_stream_modulation_txt",
        "single_stream_modulation",
    )
}


class Flux2KleinLoraNames:
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
            original = _original_name(layer)
            of_ai_toolkit = [original or _IN_AI_TOOLKIT.get(layer), _expanded(layer)]
            for prefix in _AI_TOOLKIT_PREFIXES:
                names |= {prefix + name: key for name in of_ai_toolkit if name}
            if original:
                names[_KOHYA_PREFIX + original.replace(".", "_")] = key
        return names

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the keys that lie one after another in a layer of a file, by its name."""
        names: dict[str, tuple[str, ...]] = {}
        for number in sorted({match[2] for key in keys if (match := _BLOCK.match(key))}):
            for fused, parts in _FUSED.items():
                weights = tuple(f"transformer_blocks.{number}.{part}.weight" for part in parts)
                if weights[0] not in keys:
                    continue
                name = f"double_blocks.{number}.{fused}"
                names |= {prefix + name: weights for prefix in _AI_TOOLKIT_PREFIXES}
                names[_KOHYA_PREFIX + name.replace(".", "_")] = weights
        return names

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the name of a layer within its network."""
        return [layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that diffusers would read in part only, or refuse."""
        listed = list(keys)
        formats = {_KOHYA_PREFIX, _DIFFUSERS_PREFIX, *_AI_TOOLKIT_PREFIXES}
        found = {each for each in formats if any(key.startswith(each) for key in listed)}
        if len(found) > 1:
            return f"has names of several formats, {' and '.join(sorted(found))}"
        is_kohya = any(".lora_down" in key or key.endswith(".alpha") for key in listed)
        if is_kohya != (found == {_KOHYA_PREFIX}):
            return (
                f"must have either names with {_KOHYA_PREFIX!r}, lora_down, lora_up and alpha, or "
                "other names with lora_A and lora_B; diffusers would drop or refuse its layers"
            )
        return None


def _original_name(layer: str) -> str | None:
    """Return the name of a layer in the program in which the model was trained. None: the name is
    in no format, or part of a fused layer."""
    match = _BLOCK.fullmatch(layer)
    if match is None:
        return _IN_BOTH.get(layer)
    single, number, part = match.groups()
    name = (_OF_SINGLE_BLOCKS if single else _OF_DOUBLE_BLOCKS).get(part)
    return name and f"{'single' if single else 'double'}_blocks.{number}.{name}"


def _expanded(layer: str) -> str | None:
    """Return diffusers' name of a layer in a block, which ai-toolkit's format may have, too."""
    return layer if _BLOCK.fullmatch(layer) else None


LORA_NAMES: Final = Flux2KleinLoraNames()

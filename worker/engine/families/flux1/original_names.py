"""Name the layers of FLUX.1's transformer as the program of Black Forest Labs does.

The model was trained with that program. Input: names in diffusers format. Output: the names there,
where queries, keys and values are one layer, in single blocks together with the first layer of the
feed-forward part. This module reads no files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

_BLOCK: Final = re.compile(r"(single_)?transformer_blocks\.(\d+)\.(.+)")
OUTSIDE_BLOCKS: Final[Mapping[str, str]] = {
    "x_embedder": "img_in",
    "context_embedder": "txt_in",
    **{
        f"time_text_embed.{here}_embedder.linear_{number}": f"{there}_in.{layer}_layer"
        for here, there in (("timestep", "time"), ("guidance", "guidance"), ("text", "vector"))
        for number, layer in ((1, "in"), (2, "out"))
    },
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
_OF_DOUBLE_BLOCKS: Final[Mapping[str, str]] = {
    "norm1.linear": "img_mod.lin",
    "norm1_context.linear": "txt_mod.lin",
    "attn.to_out.0": "img_attn.proj",
    "attn.to_add_out": "txt_attn.proj",
    "ff.net.0.proj": "img_mlp.0",
    "ff.net.2": "img_mlp.2",
    "ff_context.net.0.proj": "txt_mlp.0",
    "ff_context.net.2": "txt_mlp.2",
}
_OF_SINGLE_BLOCKS: Final[Mapping[str, str]] = {
    "norm.linear": "modulation.lin",
    "proj_out": "linear2",
}
IMAGE_PROJECTIONS: Final = ("attn.to_q", "attn.to_k", "attn.to_v")
TEXT_PROJECTIONS: Final = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
FusedNames = Mapping[str, Sequence[str]]
"""It has the names of the parts in diffusers format, by that of the layer in a block."""
_FUSED_IN_DOUBLE_BLOCKS: Final[FusedNames] = {
    "img_attn.qkv": IMAGE_PROJECTIONS,
    "txt_attn.qkv": TEXT_PROJECTIONS,
}
_FUSED_IN_SINGLE_BLOCKS: Final[FusedNames] = {"linear1": (*IMAGE_PROJECTIONS, "proj_mlp")}


def original_layer(
    layer: str,
    in_double_blocks: Mapping[str, str] = _OF_DOUBLE_BLOCKS,
    in_single_blocks: Mapping[str, str] = _OF_SINGLE_BLOCKS,
) -> str | None:
    """Return the name of a layer in a block. None: it is in no block, or a part of a fused layer.

    Another program may have other names of the layers in a block.
    """
    match = _BLOCK.fullmatch(layer)
    if match is None:
        return None
    single, number, part = match.groups()
    name = (in_single_blocks if single else in_double_blocks).get(part)
    return name and f"{_block(single)}.{number}.{name}"


def fused_layers(
    layers: Iterable[str],
    in_double_blocks: FusedNames = _FUSED_IN_DOUBLE_BLOCKS,
    in_single_blocks: FusedNames = _FUSED_IN_SINGLE_BLOCKS,
) -> dict[str, list[str]]:
    """Return the layers that lie one after another in one layer there, by its name."""
    blocks = {match.group(1, 2): match for each in layers if (match := _BLOCK.fullmatch(each))}
    return {
        f"{_block(single)}.{number}.{name}": [
            match.string[: match.start(3)] + part for part in parts
        ]
        for (single, number), match in blocks.items()
        for name, parts in (in_single_blocks if single else in_double_blocks).items()
    }


def _block(single: str | None) -> str:
    return "single_blocks" if single else "double_blocks"

"""Map the keys of diffusers to those of files that have all of Stable Diffusion 3 in one.

The transformer has the names of Stability's program there. Input: the keys of a network in
diffusers format. Output: the place of each in the file. This module reads no files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles, has_part
from imagefleet.worker.engine.checkpoint.single_file import Origin
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion_3.parts import CLIPS, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.networks.vae_original_keys import original_vae_keys

_TRANSFORMER: Final = "model.diffusion_model."
_CLIP, _CLIP_2, _T5 = (
    f"text_encoders.{name}.transformer." for name in ("clip_l", "clip_g", "t5xxl")
)
_VAES: Final = ("vae.", "first_stage_model.")
_PREFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    **{name: (prefix,) for name, prefix in zip(CLIPS, (_CLIP, _CLIP_2), strict=True)},
    T5: (_T5,),
    TRANSFORMER: (_TRANSFORMER,),
    VAE: _VAES,
}
"""By network: its keys in a file have one of these prefixes, the first if there are several."""
_UNREAD: Final = re.compile(
    r"text_encoders\.\w+\.logit_scale|.*\.position_ids"
    rf"|{re.escape(_CLIP)}text_projection\.weight"
    rf"|{re.escape(_T5)}encoder\.embed_tokens\.weight"
)
"""It fits the keys that are no weights, and those that diffusers does not read."""
_FIRST: Final = "joint_blocks.0.context_block.adaLN_modulation.1.bias"
_IN_LARGE: Final = "joint_blocks.37.x_block.mlp.fc1.weight"
_OF_MEDIUM: Final = 9216
"""In the medium models the first of these keys has so many values."""
_BASES: Final[Mapping[int, str]] = {
    192**2: "stabilityai/stable-diffusion-3-medium-diffusers",
    384**2: "stabilityai/stable-diffusion-3.5-medium",
}
"""It has the medium models by the length of their tables of positions."""

_LAYERS: Final[Mapping[str, str]] = {
    "pos_embed.proj": "x_embedder.proj",
    **{
        f"time_text_embed.{here}_embedder.linear_{number}": f"{there}_embedder.mlp.{layer}"
        for here, there in (("timestep", "t"), ("text", "y"))
        for number, layer in ((1, 0), (2, 2))
    },
    "context_embedder": "context_embedder",
    "norm_out.linear": "final_layer.adaLN_modulation.1",
    "proj_out": "final_layer.linear",
}
_IN_BLOCKS: Final[Mapping[str, str]] = {
    "norm1.linear": "x_block.adaLN_modulation.1",
    "norm1_context.linear": "context_block.adaLN_modulation.1",
    "attn.norm_q": "x_block.attn.ln_q",
    "attn.norm_k": "x_block.attn.ln_k",
    "attn.norm_added_q": "context_block.attn.ln_q",
    "attn.norm_added_k": "context_block.attn.ln_k",
    "attn.to_out.0": "x_block.attn.proj",
    "attn.to_add_out": "context_block.attn.proj",
    "attn2.norm_q": "x_block.attn2.ln_q",
    "attn2.norm_k": "x_block.attn2.ln_k",
    "attn2.to_out.0": "x_block.attn2.proj",
    "ff.net.0.proj": "x_block.mlp.fc1",
    "ff.net.2": "x_block.mlp.fc2",
    "ff_context.net.0.proj": "context_block.mlp.fc1",
    "ff_context.net.2": "context_block.mlp.fc2",
}
_FUSED_IN_BLOCKS: Final[Mapping[str, tuple[str, int]]] = {
    f"{here.format(kind)}": (there, number)
    for here, there in (
        ("attn.to_{}", "x_block.attn.qkv"),
        ("attn.add_{}_proj", "context_block.attn.qkv"),
        ("attn2.to_{}", "x_block.attn2.qkv"),
    )
    for number, kind in enumerate("qkv")
}
"""By layer: the one in which it is, and which third of its rows it has."""
_BLOCK: Final = re.compile(r"transformer_blocks\.(\d+)\.(.+)\.(weight|bias)")


class StableDiffusion3Format:
    """It is the format of these files. See `checkpoint.single_file.OriginalFormat`."""

    def base_model(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return the Hub id whose configs and tokenizers a file needs, as diffusers chooses it."""
        names = {key.removeprefix(_TRANSFORMER): shape for key, shape in shapes.items()}
        if names.get(_FIRST, (0,))[-1] == _OF_MEDIUM:
            return _BASES.get(names.get("pos_embed", (0, 0))[1])
        return "stabilityai/stable-diffusion-3.5-large" if _IN_LARGE in names else None

    def origins(
        self, network: str, keys: Iterable[str], stored: Iterable[str]
    ) -> dict[str, Origin]:
        """Return the place of each key of a network."""
        keys, stored = list(keys), list(stored)
        if network == TRANSFORMER:
            last = max(
                (int(match[1]) for key in keys if (match := _BLOCK.fullmatch(key))), default=0
            )
            return {key: _origin_in_transformer(key, last) for key in keys}
        prefixes = _PREFIXES[network]
        found = (each for each in prefixes if any(key.startswith(each) for key in stored))
        prefix = next(found, prefixes[0])
        if network == VAE:
            return {key: Origin(prefix + name) for key, name in original_vae_keys(keys).items()}
        if network == T5:
            return {key: Origin(prefix + key) for key in keys}
        return {key: _origin_in_clip(prefix, key) for key in keys}

    def is_read(self, key: str, networks: Sequence[str]) -> bool:
        """Return whether a key of a file is a weight that diffusers reads."""
        is_left_out = T5 not in networks and key.startswith("text_encoders.t5xxl.")
        return not is_left_out and not _UNREAD.fullmatch(key)

    def check(self, file: Path, whole: TensorFiles, files: CheckpointFiles) -> None:
        """Check that the file has all parts that model_index.json lists."""
        index = files.read_json(INDEX)
        missing = [
            network
            for network, prefixes in _PREFIXES.items()
            if has_part(index, network)
            and not any(key.startswith(prefixes) for key in whole.shapes)
        ]
        if missing == [T5]:
            raise CheckpointError(
                f"{file} has no {T5} (T5): set IMAGEFLEET_TEXT_ENCODER_3=false to leave it out, or "
                "give a file that has it, or a folder in diffusers format"
            )
        if missing:
            raise CheckpointError(
                f"{file} has no {', '.join(missing)}: it is a part of a model; give a file with "
                "all text encoders, as those that end in _incl_clips_t5xxl, or a folder in "
                "diffusers format"
            )


def _origin_in_transformer(key: str, last: int) -> Origin:
    """Return the place of a key. `last` is the number of the last block, which makes no text."""
    if (match := _BLOCK.fullmatch(key)) is None:
        layer, _, kind = key.rpartition(".")
        if layer == "pos_embed":  # the table
            return Origin(f"{_TRANSFORMER}pos_embed")
        swaps_halves = layer == "norm_out.linear"
        return Origin(f"{_TRANSFORMER}{_LAYERS[layer]}.{kind}", swaps_halves=swaps_halves)
    number, layer, kind = match.groups()
    block = f"{_TRANSFORMER}joint_blocks.{number}."
    if layer in _FUSED_IN_BLOCKS:
        name, third = _FUSED_IN_BLOCKS[layer]
        return Origin(f"{block}{name}.{kind}", part=(third, 1, 3))
    swaps_halves = layer == "norm1_context.linear" and int(number) == last
    return Origin(f"{block}{_IN_BLOCKS[layer]}.{kind}", swaps_halves=swaps_halves)


def _origin_in_clip(prefix: str, key: str) -> Origin:
    """Return the place of a key. diffusers reads no projection of the first text encoder: it takes
    the identity."""
    if key != "text_projection.weight":
        return Origin(f"{prefix}text_model.{key}")
    if prefix == _CLIP:
        return Origin(f"{prefix}text_model.final_layer_norm.weight", is_identity=True)
    return Origin(prefix + key)

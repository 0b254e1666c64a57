"""Map the keys of diffusers to those of ComfyUI's files, which have all of FLUX.1 in one.

The transformer has the names of the program of Black Forest Labs there, whose own files have the
transformer alone. Input: the keys of a network in diffusers format. Output: the place of each in
the file. This module reads no files.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import Origin
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.flux1.original_names import (
    OUTSIDE_BLOCKS,
    fused_layers,
    original_layer,
)
from imagefleet.worker.engine.families.flux1.parts import CLIP, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.families.flux1.transformer_config import MLP_RATIO
from imagefleet.worker.engine.networks.vae_original_keys import original_vae_keys

_PREFIXES: Final[Mapping[str, str]] = {
    TRANSFORMER: "model.diffusion_model.",
    CLIP: "text_encoders.clip_l.transformer.text_model.",
    T5: "text_encoders.t5xxl.transformer.",
    VAE: "vae.",
}
_UNREAD: Final = re.compile(
    r"text_encoders\.\w+\.logit_scale|.*\.position_ids"
    r"|text_encoders\.clip_l\.transformer\.text_projection\.weight"
    r"|text_encoders\.t5xxl\.transformer\.encoder\.embed_tokens\.weight"
)
"""It fits the keys that are no weights, and those that diffusers does not read."""
_FIRST: Final = "double_blocks.0.img_attn.norm.key_norm.scale"
_OF_OTHERS: Final = (
    "single_stream_modulation.lin.weight",
    "distilled_guidance_layer.in_proj.bias",
)
"""FLUX.2 and Chroma have one of these keys beside the first."""
_NORM: Final = re.compile(r"(single_)?(transformer_blocks\.\d+\.)attn\.norm_(added_)?([qk])")
_IN_SINGLE_LAYER: Final = 3 + MLP_RATIO
"""The first layer of a single block has so many times the width as outputs."""


class Flux1Format:
    """It is the format of these files. See `checkpoint.single_file.OriginalFormat`."""

    def base_model(self, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Return the Hub id whose configs and tokenizers a file needs, as diffusers chooses it."""
        names = {key.removeprefix(_PREFIXES[TRANSFORMER]): shape for key, shape in shapes.items()}
        if _FIRST not in names or any(each in names for each in _OF_OTHERS):
            return None
        if "guidance_in.in_layer.bias" not in names:
            return "black-forest-labs/FLUX.1-schnell"
        channels = names.get("img_in.weight", (0,))[-1]
        kind = {384: "Fill-dev", 128: "Depth-dev"}.get(channels, "dev")
        return f"black-forest-labs/FLUX.1-{kind}"

    def origins(
        self, network: str, keys: Iterable[str], stored: Iterable[str]
    ) -> dict[str, Origin]:
        """Return the place of each key of a network."""
        keys, prefix = list(keys), _PREFIXES[network]
        if network == TRANSFORMER:
            return _origins_in_transformer(keys)
        if network == VAE:
            return {key: Origin(prefix + name) for key, name in original_vae_keys(keys).items()}
        return {key: Origin(prefix + key) for key in keys}

    def is_read(self, key: str, networks: Sequence[str]) -> bool:
        """Return whether a key of a file is a weight that diffusers reads."""
        return not _UNREAD.fullmatch(key)

    def check(self, file: Path, whole: TensorFiles, files: CheckpointFiles) -> None:
        """Check that the file has all parts."""
        missing = [
            network
            for network, prefix in _PREFIXES.items()
            if not any(key.startswith(prefix) for key in whole.shapes)
        ]
        if TRANSFORMER in missing and _FIRST in whole.shapes:
            missing.remove(TRANSFORMER)
        if missing:
            raise CheckpointError(
                f"{file} has no {', '.join(missing)}: as files of Black Forest Labs, it is a part "
                "of a model; give a folder in diffusers format, or a file with all parts, as "
                "ComfyUI has them"
            )


def _origins_in_transformer(keys: list[str]) -> dict[str, Origin]:
    prefix, places = _PREFIXES[TRANSFORMER], dict[str, Origin]()
    for key in keys:
        layer, _, kind = key.rpartition(".")
        if match := _NORM.fullmatch(layer):
            places[key] = Origin(prefix + _norm(*match.groups()))
        elif name := original_layer(layer) or OUTSIDE_BLOCKS.get(layer):
            places[key] = Origin(f"{prefix}{name}.{kind}", swaps_halves=layer == "norm_out.linear")
    layers = [key.removesuffix(".weight") for key in keys if key.endswith(".weight")]
    for name, parts in fused_layers(layers).items():
        count = _IN_SINGLE_LAYER if len(parts) > 3 else 3
        for number, part in enumerate(parts):
            size = MLP_RATIO if number == 3 else 1
            for kind in ("weight", "bias"):
                place = Origin(f"{prefix}{name}.{kind}", part=(number, size, count))
                places[f"{part}.{kind}"] = place
    return places


def _norm(single: str | None, block: str, added: str | None, kind: str) -> str:
    """Return the original key of a norm of queries or keys."""
    name = f"norm.{'query' if kind == 'q' else 'key'}_norm.scale"
    number = block.removeprefix("transformer_blocks.")
    if single:
        return f"single_blocks.{number}{name}"
    return f"double_blocks.{number}{'txt' if added else 'img'}_attn.{name}"

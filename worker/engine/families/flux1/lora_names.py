"""Name the layers of FLUX.1 as LoRA files do, in the five formats that diffusers reads.

Input: the keys of a network in diffusers format. Output: each name that a file may have for a
layer. This module reads no files. Of the text encoders, diffusers reads LoRA of CLIP alone.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from imagefleet.worker.engine.families.flux1.original_names import (
    IMAGE_PROJECTIONS,
    OUTSIDE_BLOCKS,
    TEXT_PROJECTIONS,
    fused_layers,
    original_layer,
)
from imagefleet.worker.engine.families.flux1.parts import CLIP, TRANSFORMER

_DIFFUSERS, _KOHYA, _ONE_TRAINER, _PEFT, _X_FLUX = (
    "diffusers'",
    "kohya's",
    "OneTrainer's",
    "PEFT's",
    "x-flux's",
)
_STARTS: Final = (
    (_X_FLUX, r"(diffusion_model\.)?\w+_blocks\.\d+\.processor\."),
    (_DIFFUSERS, r"transformer\.|text_encoder\."),
    (_ONE_TRAINER, r"lora_transformer_"),
    (_PEFT, r"base_model\.model\."),
    (_KOHYA, r"lora_unet_|lora_te_|diffusion_model\.|text_encoders\."),
)
"""It says how the keys of a format begin; the first that fits decides. Those of CLIP that begin
with `lora_te1_` are of kohya's format and of OneTrainer's."""
_DOWN_AND_UP: Final = r"\.lora_(down|up)\.weight|\.alpha"
_ENDS: Final = {
    _DIFFUSERS: r"\.lora_[AB]\.weight|\.alpha",
    _KOHYA: _DOWN_AND_UP,
    _ONE_TRAINER: _DOWN_AND_UP,
    _PEFT: r"\.lora_[AB]\.weight",
    _X_FLUX: r"_lora[12]?\.(down|up)\.weight",
}
_OF_ORIGINAL: Final = ("base_model.model.", "diffusion_model.")
_OF_X_FLUX: Final = ("", "diffusion_model.")
_IN_X_FLUX: Final = (
    {"attn.to_out.0": "processor.proj_lora1", "attn.to_add_out": "processor.proj_lora2"},
    {"proj_out": "processor.proj"},  # the rest of its `proj_lora` says that it is a LoRA
)
"""It has the layers that x-flux trains, those of double blocks first."""
_FUSED_IN_X_FLUX: Final = (
    {"processor.qkv_lora1": IMAGE_PROJECTIONS, "processor.qkv_lora2": TEXT_PROJECTIONS},
    {"processor.qkv": IMAGE_PROJECTIONS},
)
_GUIDANCE: Final = tuple(f"time_text_embed.guidance_embedder.linear_{number}" for number in (1, 2))
"""schnell has none of these layers of dev. diffusers leaves out what a LoRA of dev adds to them."""
_OF_CLIP: Final = re.compile(r"encoder\.layers\.\d+\.(self_attn\.\w+_proj|mlp\.fc[12])")


class Flux1LoraNames:
    """It has the names of layers in LoRA files. See `checkpoint.lora_keys.LoraNames`."""

    networks: Sequence[str] = (TRANSFORMER, CLIP)
    widened: Sequence[str] = ("x_embedder.weight",)
    """Fill gets more channels than dev. diffusers widens a LoRA with zeros."""

    def by_name(self, network: str, keys: Sequence[str]) -> dict[str, str]:
        """Return the key of a network's weight by each name that a file may have for its layer."""
        names_of = _names_in_clip if network == CLIP else _names_in_transformer
        return {name: f"{layer}.weight" for layer in _layers(keys) for name in names_of(layer)}

    def fused(self, network: str, keys: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the keys that lie one after another in a layer of a file, by its name."""
        layers, names = _layers(keys), dict[str, tuple[str, ...]]()
        for name, parts in fused_layers(layers).items():
            weights = tuple(f"{part}.weight" for part in parts)
            names |= dict.fromkeys(_spelled(name), weights)
        for name, parts in fused_layers(layers, *_FUSED_IN_X_FLUX).items():
            weights = tuple(f"{part}.weight" for part in parts)
            names |= {prefix + name: weights for prefix in _OF_X_FLUX}
        if network == TRANSFORMER:
            missing = [layer for layer in _GUIDANCE if layer not in layers]
            names |= {name: () for layer in missing for name in _names_in_transformer(layer)}
        return names

    def spellings(self, network: str, layer: str) -> list[str]:
        """Return the names of a layer within its network. transformers once had a prefix, and files
        still have it."""
        return [f"text_model.{layer}", layer] if network == CLIP else [layer]

    def mixture(self, keys: Iterable[str]) -> str | None:
        """Return what is wrong with a file that diffusers would read in part only, or refuse."""
        listed = sorted(keys)
        found = sorted({name for key in listed if (name := _format_of(key))}) or [_KOHYA]
        if len(found) > 1:
            return f"has names of several formats, {' and '.join(found)}"
        (name,) = found
        for key in listed:
            if not re.search(f"({_ENDS[name]})$", key):
                return f"has names of {name} format, in which diffusers does not read {key}"
        alphas = sum(key.endswith(".alpha") for key in listed)
        layers = sum(key.endswith(("down.weight", "lora_A.weight")) for key in listed)
        if alphas != layers and (name == _ONE_TRAINER or (name == _DIFFUSERS and alphas)):
            return (
                f"has alpha for {alphas} of {layers} layers; in {name} format, diffusers would "
                "refuse it or give the others a wrong one"
            )
        return None


def _layers(keys: Iterable[str]) -> list[str]:
    return [key.removesuffix(".weight") for key in keys if key.endswith(".weight")]


def _format_of(key: str) -> str | None:
    return next((name for name, start in _STARTS if re.match(start, key)), None)


def _names_in_transformer(layer: str) -> Iterator[str]:
    yield f"transformer.{layer}"
    if original := original_layer(layer):
        yield from _spelled(original)
    elif layer == "proj_out":
        yield "base_model.model.final_layer.linear"
    if ".attn.to_" in layer or ".attn.add_" in layer or layer in OUTSIDE_BLOCKS:
        yield f"lora_transformer_{layer.replace('.', '_')}"
    if in_x_flux := original_layer(layer, *_IN_X_FLUX):
        yield from (prefix + in_x_flux for prefix in _OF_X_FLUX)


def _spelled(original: str) -> Iterator[str]:
    """Yield the spellings of a layer of the program in which the model was trained."""
    yield from (prefix + original for prefix in _OF_ORIGINAL)
    yield f"lora_unet_{original.replace('.', '_')}"


def _names_in_clip(layer: str) -> Iterator[str]:
    if not _OF_CLIP.fullmatch(layer):
        return
    yield f"text_encoder.{layer}"
    with_prefix = f"text_model.{layer}"
    yield f"text_encoder.{with_prefix}"
    yield f"text_encoders.clip_l.transformer.{with_prefix}"
    for prefix in ("lora_te_", "lora_te1_"):
        yield prefix + with_prefix.replace(".", "_")


LORA_NAMES: Final = Flux1LoraNames()

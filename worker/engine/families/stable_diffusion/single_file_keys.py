"""Map the keys of diffusers to those of the original format of one file.

The original format is that of the programs in which the models were trained: CompVis' latent
diffusion, OpenCLIP, and Stability's generative models. Input: the keys of a network in the
diffusers format. Output: the place of each in the file. This module reads no files.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from imagefleet.worker.engine.checkpoint.single_file import Origin
from imagefleet.worker.engine.families.stable_diffusion.training_markers import MARKERS
from imagefleet.worker.engine.networks.vae_original_keys import original_vae_keys

UNET_PREFIX: Final = "model.diffusion_model."
VAE_PREFIX: Final = "first_stage_model."
Renames = Sequence[tuple[str, str]]
"""Each rule is a regular expression and its replacement. The rules are applied in order."""

CLIP_PREFIXES: Final = {
    "text_encoder": ("cond_stage_model.transformer.", "conditioner.embedders.0.transformer."),
    "text_encoder_2": (),
}
"""By text encoder, it has the prefixes of the keys of a CLIP of transformers."""
OPEN_CLIP_PREFIXES: Final = {
    "text_encoder": ("cond_stage_model.model.",),
    "text_encoder_2": ("conditioner.embedders.1.model.", "conditioner.embedders.0.model."),
}
"""By text encoder, it has the prefixes of the keys of a CLIP of OpenCLIP."""


_RESNET: Final[Renames] = (
    (r"\.norm1\.", ".in_layers.0."),
    (r"\.conv1\.", ".in_layers.2."),
    (r"\.time_emb_proj\.", ".emb_layers.1."),
    (r"\.norm2\.", ".out_layers.0."),
    (r"\.conv2\.", ".out_layers.3."),
    (r"\.conv_shortcut\.", ".skip_connection."),
)
_UNET_ENDS: Final[Renames] = (
    (r"^time_embedding\.linear_1\.", "time_embed.0."),
    (r"^time_embedding\.linear_2\.", "time_embed.2."),
    (r"^add_embedding\.linear_1\.", "label_emb.0.0."),
    (r"^add_embedding\.linear_2\.", "label_emb.0.2."),
    (r"^conv_in\.", "input_blocks.0.0."),
    (r"^conv_norm_out\.", "out.0."),
    (r"^conv_out\.", "out.2."),
)
_OPEN_CLIP: Final[Renames] = (
    (r"^embeddings\.token_embedding\.", "token_embedding."),
    (r"^embeddings\.position_embedding\.weight$", "positional_embedding"),
    (r"^final_layer_norm\.", "ln_final."),
    (r"^text_projection\.weight$", "text_projection"),
    (r"^encoder\.layers\.", "transformer.resblocks."),
    (r"\.layer_norm([12])\.", r".ln_\1."),
    (r"\.mlp\.fc1\.", ".mlp.c_fc."),
    (r"\.mlp\.fc2\.", ".mlp.c_proj."),
    (r"\.self_attn\.", ".attn."),
)
_THIRDS: Final = {"q": (0, 1, 3), "k": (1, 1, 3), "v": (2, 1, 3)}


def origins(network: str, keys: Iterable[str], stored: Iterable[str]) -> dict[str, Origin]:
    """Return the place of each key of a network.

    Args:
        network: The network's folder in diffusers format.
        keys: Its keys there.
        stored: The keys in the file. They tell which program wrote a text encoder.
    """
    keys = list(keys)
    if network == "unet":
        rename = _unet_renamer(keys)
        return {key: Origin(UNET_PREFIX + rename(key)) for key in keys}
    if network == "vae":
        return {key: Origin(VAE_PREFIX + name) for key, name in original_vae_keys(keys).items()}
    stored = list(stored)
    for prefix in OPEN_CLIP_PREFIXES[network]:
        if any(key.startswith(prefix) for key in stored):
            return {key: _open_clip_origin(prefix, key) for key in keys}
    for prefix in CLIP_PREFIXES[network]:
        if any(key.startswith(prefix) for key in stored):
            return {key: Origin(f"{prefix}text_model.{key}") for key in keys}
    return {}


def _open_clip_origin(prefix: str, key: str) -> Origin:
    if match := re.fullmatch(r"(.*\.self_attn)\.([qkv])_proj\.(weight|bias)", key):
        name = _rename(f"{match[1]}.in_proj_{match[3]}", _OPEN_CLIP)
        return Origin(prefix + name, part=_THIRDS[match[2]])
    return Origin(prefix + _rename(key, _OPEN_CLIP), transposed=key == "text_projection.weight")


def _unet_renamer(keys: list[str]) -> Callable[[str], str]:
    """Return the function from a key of this UNet to the original key.

    There the layers of all levels are counted together.
    """
    down, up = (_first_layers(keys, side) for side in ("down", "up"))

    def rename(key: str) -> str:
        match = re.match(r"(down|up|mid)_(?:blocks\.(\d+)|block)\.(\w+)\.(\d+)\.(.*)", key)
        if match is None:
            return _rename(key, _UNET_ENDS)
        side, block, kind, layer, rest = (
            match[1],
            int(match[2] or 0),
            match[3],
            int(match[4]),
            match[5],
        )
        if kind == "resnets":
            rest = _rename(f".{rest}", _RESNET)[1:]
        if side == "mid":
            return f"middle_block.{2 * layer + (kind == 'attentions')}.{rest}"
        if side == "down":
            if kind == "downsamplers":
                return f"input_blocks.{down[block + 1]}.0.{rest.replace('conv.', 'op.')}"
            return f"input_blocks.{1 + down[block] + layer}.{int(kind == 'attentions')}.{rest}"
        if kind == "upsamplers":
            follows_attention = any(
                each.startswith(f"up_blocks.{block}.attentions.") for each in keys
            )
            return f"output_blocks.{up[block + 1] - 1}.{1 + follows_attention}.{rest}"
        return f"output_blocks.{up[block] + layer}.{int(kind == 'attentions')}.{rest}"

    return rename


def _first_layers(keys: list[str], side: str) -> list[int]:
    """Return how many layers come before each block, and before the end.

    A downsampler counts as a layer.
    """
    counts: dict[int, int] = {}
    for block in sorted(_numbers(keys, rf"^{side}_blocks\.(\d+)\.")):
        prefix = rf"^{side}_blocks\.{block}\."
        counts[block] = len(_numbers(keys, rf"{prefix}resnets\.(\d+)\."))
        counts[block] += side == "down" and bool(_numbers(keys, rf"{prefix}downsamplers\.(\d+)\."))
    return [0, *accumulate(counts.values())]


def _numbers(keys: Iterable[str], pattern: str) -> set[int]:
    return {int(match[1]) for key in keys if (match := re.match(pattern, key))}


def _rename(key: str, rules: Renames) -> str:
    for pattern, replacement in rules:
        key = re.sub(pattern, replacement, key)
    return key


_UNREAD: Final = re.compile(
    r"model_ema\.|.*\.position_ids$|.*\.logit_scale$|.*\.attn_mask$|denoiser\.sigmas$"
    r"|(betas|alphas_cumprod|sqrt_|log_one_minus_alphas_cumprod|posterior_|lvlb_weights)"
    r"|edm_(mean|std)$"
    r"|cond_stage_model\.model\.(text_projection$|transformer\.resblocks\.23\.)"
)
"""Keys that are no weights, or that diffusers does not read: running averages, constants, and the
last layer and the projection of Stable Diffusion 2's text encoder."""


def is_read(key: str, networks: Sequence[str]) -> bool:
    """Return whether a key of a file is a weight that diffusers reads."""
    return key not in MARKERS and not _UNREAD.match(key)


_BASES: Final[Mapping[int, Mapping[str, str]]] = {
    4: {
        "1": "stable-diffusion-v1-5/stable-diffusion-v1-5",
        "2": "stabilityai/stable-diffusion-2-1",
        "xl": "stabilityai/stable-diffusion-xl-base-1.0",
        "refiner": "stabilityai/stable-diffusion-xl-refiner-1.0",
        "playground": "playgroundai/playground-v2.5-1024px-aesthetic",
    },
    8: {"1": "timbrooks/instruct-pix2pix"},
    9: {
        "1": "stable-diffusion-v1-5/stable-diffusion-inpainting",
        "2": "stabilityai/stable-diffusion-2-inpainting",
        "xl": "diffusers/stable-diffusion-xl-1.0-inpainting-0.1",
    },
}
"""It has Hub ids by the UNet's input channels, and by kind."""


def base_model(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the Hub id whose configs and tokenizers a file needs, as diffusers chooses it.

    None: the file is of a model that this engine does not know.
    """
    first = shapes.get(f"{UNET_PREFIX}input_blocks.0.0.weight")
    attention = shapes.get(
        f"{UNET_PREFIX}input_blocks.2.1.transformer_blocks.0.attn2.to_k.weight", (0,)
    )
    by_channels = {} if first is None else _BASES.get(first[1], {})
    if attention[-1] == 1024:
        return by_channels.get("2")
    if "edm_mean" in shapes:
        return by_channels.get("playground")
    if "conditioner.embedders.1.model.ln_final.weight" in shapes:
        return by_channels.get("xl")
    if "conditioner.embedders.0.model.ln_final.weight" in shapes:
        return by_channels.get("refiner")
    is_first = any(key.startswith("cond_stage_model.transformer.") for key in shapes)
    return by_channels.get("1") if is_first else None

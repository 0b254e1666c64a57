"""Name the weights of an autoencoder as the programs do in which it was trained.

Input: the keys of diffusers' AutoencoderKL. Output: those of CompVis' latent diffusion, which other
programs have taken over. This module reads no files.
"""

import re
from collections.abc import Iterable
from typing import Final

_RENAMES: Final = (
    (r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r"encoder.down.\1.block.\2."),
    (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.0\.", r"encoder.down.\1.downsample."),
    (r"\.mid_block\.resnets\.0\.", ".mid.block_1."),
    (r"\.mid_block\.resnets\.1\.", ".mid.block_2."),
    (r"\.mid_block\.attentions\.0\.group_norm\.", ".mid.attn_1.norm."),
    (r"\.mid_block\.attentions\.0\.to_out\.0\.", ".mid.attn_1.proj_out."),
    (r"\.mid_block\.attentions\.0\.to_([qkv])\.", r".mid.attn_1.\1."),
    (r"\.conv_shortcut\.", ".nin_shortcut."),
    (r"\.conv_norm_out\.", ".norm_out."),
)


def original_vae_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the original key of each key of an autoencoder."""
    keys = list(keys)
    up_blocks = (re.match(r"decoder\.up_blocks\.(\d+)\.", key) for key in keys)
    levels = 1 + max((int(match[1]) for match in up_blocks if match), default=0)
    return {key: _original_key(key, levels) for key in keys}


def _original_key(key: str, levels: int) -> str:
    """Return the original key. There the up blocks are counted from the finest level."""
    if match := re.match(r"decoder\.up_blocks\.(\d+)\.(resnets|upsamplers)\.(\d+)\.(.*)", key):
        level = levels - 1 - int(match[1])
        kind = f"block.{match[3]}" if match[2] == "resnets" else "upsample"
        key = f"decoder.up.{level}.{kind}.{match[4]}"
    for pattern, replacement in _RENAMES:
        key = re.sub(pattern, replacement, key)
    return key

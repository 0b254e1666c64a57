"""Well-known checkpoints of Stable Diffusion 3 by name: their structures, with tiny widths.

docs/models.md lists the same names, and says of each whether it loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tools.parity.flow.stable_diffusion_3_case import Variant

_OF_3: Final[Mapping[str, Any]] = {"dual_attention_layers": [], "pos_embed_max_size": 192}
_MEDIUM: Final = {**_OF_3, "num_layers": 24, "qk_norm": None, "sample_size": 128}
_MEDIUM_3_5: Final = {
    "num_layers": 24,
    "dual_attention_layers": list(range(13)),
    "pos_embed_max_size": 384,
    "sample_size": 128,
}
_LARGE_3_5: Final = {**_OF_3, "num_layers": 38, "sample_size": 128}
_TURBO: Final = Variant(transformer=_LARGE_3_5, steps=4, guidance=0.0)


@dataclass(frozen=True, kw_only=True)
class KnownStableDiffusion3:
    """It is the structure of one checkpoint."""

    variant: Variant
    refused: str = ""
    """A part of the sentence that refuses it. Empty: it loads."""


KNOWN_STABLE_DIFFUSION_3: Final[Mapping[str, KnownStableDiffusion3]] = {
    "stabilityai/stable-diffusion-3-medium-diffusers": KnownStableDiffusion3(
        variant=Variant(transformer=_MEDIUM, guidance=7.0)
    ),
    "stabilityai/stable-diffusion-3.5-medium": KnownStableDiffusion3(
        variant=Variant(transformer=_MEDIUM_3_5, guidance=4.5)
    ),
    "tensorart/stable-diffusion-3.5-medium-turbo": KnownStableDiffusion3(
        variant=Variant(transformer=_MEDIUM_3_5, scheduler={"shift": 5.0}, guidance=1.5)
    ),
    "stabilityai/stable-diffusion-3.5-large": KnownStableDiffusion3(
        variant=Variant(transformer=_LARGE_3_5, guidance=3.5)
    ),
    "stabilityai/stable-diffusion-3.5-large-turbo": KnownStableDiffusion3(variant=_TURBO),
    "adamo1139/stable-diffusion-3.5-large-turbo-ungated": KnownStableDiffusion3(variant=_TURBO),
    "sayakpaul/sd35-large-nf4": KnownStableDiffusion3(
        variant=Variant(
            transformer={**_LARGE_3_5, "quantization_config": {"quant_method": "bitsandbytes"}}
        ),
        refused="quantization_config",
    ),
}

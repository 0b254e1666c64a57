"""List well-known checkpoints of FLUX.1 and its relatives: their structures, with tiny widths.

docs/models.md lists the same names, and says of each whether it loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tools.parity.flow import flux1_case
from tools.parity.flow.flux1_case import FILL, SCHNELL, TRANSFORMER, Variant

FILLS: Final = "black-forest-labs/FLUX.1-Fill-dev"
KONTEXT: Final = "black-forest-labs/FLUX.1-Kontext-dev"
_BLOCKS: Final = {"num_layers": 19, "num_single_layers": 38}
_FEWER_BLOCKS: Final = {"num_layers": 8, "num_single_layers": 38}
_DEV: Final = Variant(transformer=_BLOCKS, guidance=3.5)
_SCHNELL: Final = Variant(
    transformer={**_BLOCKS, "guidance_embeds": False}, scheduler=SCHNELL, steps=4
)
_LITE: Final = Variant(transformer=_FEWER_BLOCKS, guidance=3.5)


@dataclass(frozen=True, kw_only=True)
class KnownFlux1:
    """It is the structure of one checkpoint."""

    variant: Variant
    refused: str = ""
    """A part of the sentence that refuses it. Empty: it loads."""


def _other(pipeline: str, **transformer: Any) -> KnownFlux1:
    """Return a checkpoint of a pipeline that this engine does not run."""
    index = {"_class_name": pipeline}
    return KnownFlux1(
        variant=Variant(index=index, transformer=transformer),
        refused=f"model_index.json: _class_name is {pipeline!r}; this engine runs",
    )


KNOWN_FLUX1: Final[Mapping[str, KnownFlux1]] = {
    "black-forest-labs/FLUX.1-schnell": KnownFlux1(variant=_SCHNELL),
    "black-forest-labs/FLUX.1-dev": KnownFlux1(variant=_DEV),
    "black-forest-labs/FLUX.1-Krea-dev": KnownFlux1(variant=_DEV),
    "sayakpaul/FLUX.1-merged": KnownFlux1(variant=_DEV),
    "shuttleai/shuttle-3-diffusion": KnownFlux1(variant=_SCHNELL),
    "ostris/Flex.1-alpha": KnownFlux1(variant=_LITE),
    "Freepik/flux.1-lite-8B": KnownFlux1(variant=_LITE),
    FILLS: KnownFlux1(
        variant=Variant(index=FILL.index, transformer={**FILL.transformer, **_BLOCKS})
    ),
    KONTEXT: KnownFlux1(variant=replace(_DEV, index=flux1_case.KONTEXT.index)),
    "black-forest-labs/FLUX.1-Depth-dev": _other(
        "FluxControlPipeline", in_channels=2 * TRANSFORMER["in_channels"]
    ),
    "black-forest-labs/FLUX.1-Canny-dev": _other(
        "FluxControlPipeline", in_channels=2 * TRANSFORMER["in_channels"]
    ),
    "black-forest-labs/FLUX.1-Redux-dev": _other("FluxPriorReduxPipeline"),
    "lodestones/Chroma1-HD": _other("ChromaPipeline"),
    "black-forest-labs/FLUX.2-dev": _other("Flux2Pipeline"),
    "hf-internal-testing/flux.1-dev-nf4-pkg": KnownFlux1(
        variant=Variant(transformer={"quantization_config": {"quant_method": "bitsandbytes"}}),
        refused="quantization_config",
    ),
}

"""Say how checkpoints name the weights of Stable Diffusion's UNet.

Those of the autoencoder, CLIP and the safety checker stand on their classes in `networks/`.
"""

from typing import Final

from imagefleet.worker.engine.checkpoint.weights import WeightNames

UNET_NAMES: Final = WeightNames(
    to_checkpoint=(
        (r"\b(up|down)sampler\b", r"\1samplers.0"),
        (r"\bto_out\b", "to_out.0"),
        (r"\bff\.proj_in\b", "ff.net.0.proj"),
        (r"\bff\.proj_out\b", "ff.net.2"),
    )
)

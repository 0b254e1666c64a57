"""Read the `config.json` of diffusers' ControlNetModel.

Input: the parsed JSON. Output: a `ControlNetConfig`. An error lists every unsupported field.
"""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig

CLASS_NAME: Final = "ControlNetModel"
_OWN_FIELDS: Final = (
    "conditioning_channels",
    "conditioning_embedding_out_channels",
    "controlnet_conditioning_channel_order",
    "global_pool_conditions",
)
"""The config of a UNet has not these fields."""
_DOWN_BLOCKS: Final = (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D")


@dataclass(frozen=True, kw_only=True)
class ControlNetConfig:
    """It is the `config.json` of a ControlNet."""

    encoder: UNetConfig
    """It is that of the UNet whose first half the ControlNet copies."""
    embedding_widths: tuple[int, ...]
    """They are the channels of the control image's embedding. Each but the first halves the
    sides."""

    @classmethod
    def from_json(cls, config: Json, *, file: str = "config.json") -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            file: Its name, for errors.

        Raises:
            CheckpointError: It is of another network, or fields are missing or unsupported.
        """
        if (name := config.get("_class_name", CLASS_NAME)) != CLASS_NAME:
            raise CheckpointError(f"{file}: {name} is not supported; only {CLASS_NAME} is")
        own = {name: config[name] for name in _OWN_FIELDS if name in config}
        fields = ConfigReader(file, own)
        fields.require(
            conditioning_channels=3,
            controlnet_conditioning_channel_order="rgb",
            global_pool_conditions=False,
        )
        widths = fields.counts("conditioning_embedding_out_channels", (16, 32, 96, 256))
        fields.finish()
        return cls(
            encoder=UNetConfig.from_json(_as_unet(config), file=file), embedding_widths=widths
        )

    @property
    def downsampling(self) -> int:
        """Return how many pixels of the control image become one latent, along each side."""
        return 1 << (len(self.embedding_widths) - 1)


def _as_unet(config: Json) -> Json:
    """Return the config of a UNet with the same first half."""
    blocks = config.get("down_block_types", _DOWN_BLOCKS)
    mirrored = [str(block).replace("Down", "Up") for block in reversed(blocks)]
    others = {name: value for name, value in config.items() if name not in _OWN_FIELDS}
    return {**others, "up_block_types": mirrored}

"""Read the ControlNets that jobs may use, and check them against the model.

Input: folders in diffusers format, and the configs of the model. Output: `ControlNetFiles`. It
reads no weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.control_net_config import ControlNetConfig
from imagefleet.worker.engine.options.control_net_options import (
    CONTROL_NET_CONFIG,
    ControlNetOption,
)
from imagefleet.worker.engine.sampling.image_input import ImageInput


@dataclass(frozen=True)
class ControlNetFiles:
    """It has the files of one ControlNet, whose config was read."""

    name: str
    files: CheckpointFiles
    folder: str
    config: ControlNetConfig

    @property
    def network(self) -> str:
        """Return the name of the network among those of the model."""
        return f"controlnet {self.name}"

    def open_weights(self) -> TensorFiles:
        """Open the weights.

        Raises:
            CheckpointError: there are none, or a file is damaged.
        """
        return self.files.open_weights((self.folder,))[self.folder]


def read_control_nets(
    options: Sequence[ControlNetOption], configs: Configs
) -> tuple[ControlNetFiles, ...]:
    """Read the configs of ControlNets.

    Raises:
        CheckpointError: a config is missing, unsupported, or of a net for another model.
        ConfigurationError: the pipeline of the model makes no images with ControlNets.
    """
    if options and (
        configs.pipeline.image_input is not ImageInput.NONE or configs.pipeline.image_use.required
    ):
        raise ConfigurationError(
            "IMAGEFLEET_CONTROLNET: models that edit, inpaint or refine an image take no "
            "ControlNet here; unset it"
        )
    return tuple(_read(option, configs) for option in options)


def _read(option: ControlNetOption, configs: Configs) -> ControlNetFiles:
    folder = option.folder
    files = CheckpointFiles(folder.parent)
    config = ControlNetConfig.from_json(
        files.read_json(f"{folder.name}/{CONTROL_NET_CONFIG}"),
        file=f"{folder}/{CONTROL_NET_CONFIG}",
    )
    own, unet = config.encoder, configs.unet
    for name, value, needed in (
        ("in_channels", own.in_channels, unet.in_channels),
        ("cross_attention_dim", own.cross_attention_dim, unet.cross_attention_dim),
        ("block_out_channels", own.block_out_channels, unet.block_out_channels),
        ("layers_per_block", own.layers_per_block, unet.layers_per_block),
        ("pooled text and time", own.text_time, unet.text_time),
        ("pixels of a latent", config.downsampling, configs.vae.downsampling),
        ("mid_block_type", own.has_mid_block, True),
    ):
        if value != needed:
            raise CheckpointError(
                f"controlnet {option.name}: it is for another model: {name} is {value!r}, but must "
                f"be {needed!r} for the model's UNet; take a ControlNet of the same kind of model"
            )
    return ControlNetFiles(option.name, files, folder.name, config)

"""Read the configs of a checkpoint of Z-Image.

Input: the files of a checkpoint. Output: the configs of its networks, checked alone and against
each other. This module reads no weights.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.checkpoint.index_parts import (
    refuse_files_beside,
    require_equal,
    require_part,
)
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.z_image.transformer_config import TransformerConfig
from imagefleet.worker.engine.networks.latent_packing import PATCH
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Config
from imagefleet.worker.engine.networks.vae import VaeConfig
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule

PIPELINE: Final = "ZImagePipeline"
TEXT_ENCODER: Final = "text_encoder"
TRANSFORMER: Final = "transformer"
VAE: Final = "vae"
TOKENIZER: Final = "tokenizer"
TEXT_LENGTH: Final = 512
"""diffusers' pipeline gives the text encoder this many tokens."""
GUIDED_ROWS: Final = 2
"""The transformer's batch has this many rows for an image with guidance."""
_STATE: Final = -2
"""The transformer reads this hidden state of the text encoder."""


@dataclass(frozen=True, kw_only=True)
class Configs:
    """It has the configs of all parts of a checkpoint."""

    text_encoder: Qwen3Config
    transformer: TransformerConfig
    vae: VaeConfig
    noise: FlowSchedule

    @classmethod
    def read(cls, files: CheckpointFiles) -> Self:
        """Read and check the configs in `files`.

        Raises:
            CheckpointError: A file is missing, is of an unsupported part, or contradicts another
                file.
        """
        require = partial(require_part, files.read_json(INDEX))
        require(TEXT_ENCODER, "transformers", ("Qwen3Model", "Qwen3ForCausalLM"))
        require(TOKENIZER, "transformers", ("Qwen2Tokenizer", "Qwen2TokenizerFast"))
        require(TRANSFORMER, "diffusers", ("ZImageTransformer2DModel",))
        require(VAE, "diffusers", ("AutoencoderKL",))
        scheduler = require("scheduler", "diffusers")
        refuse_files_beside(files, TEXT_ENCODER)
        configs = cls(
            text_encoder=Qwen3Config.from_json(
                files.read_json(f"{TEXT_ENCODER}/config.json"), (_STATE,)
            ),
            transformer=TransformerConfig.from_json(files.read_json(f"{TRANSFORMER}/config.json")),
            vae=VaeConfig.from_json(files.read_json(f"{VAE}/config.json")),
            noise=FlowSchedule.from_json(
                files.read_json("scheduler/scheduler_config.json"), scheduler
            ),
        )
        configs._require_consistent()
        return configs

    def _require_consistent(self) -> None:
        if self.vae.latents_mean is not None:
            raise CheckpointError(
                "vae/config.json: latents_mean and latents_std are set, which ZImagePipeline does "
                "not read; take the autoencoder of this model"
            )
        require_equal(
            (
                "transformer in_channels, autoencoder latent_channels",
                self.transformer.in_channels,
                self.vae.latent_channels,
            ),
            (
                "transformer cap_feat_dim, text hidden_size",
                self.transformer.cap_feat_dim,
                self.text_encoder.hidden_size,
            ),
        )

    @property
    def shape_multiple(self) -> int:
        """Return the pixels of which height and width must be multiples."""
        return self.vae.downsampling * PATCH

    def image_tokens(self, shape: Shape) -> int:
        """Return the tokens of an image without their padding."""
        return shape.height * shape.width // self.shape_multiple**2

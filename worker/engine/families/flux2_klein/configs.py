"""Read the configs of a checkpoint of FLUX.2 klein.

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
from imagefleet.worker.engine.contract.image_use import ImageLimits
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux2_klein.transformer_config import TransformerConfig
from imagefleet.worker.engine.families.flux2_klein.vae import Flux2VaeConfig
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Config
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule

PIPELINE: Final = "Flux2KleinPipeline"
TEXT_ENCODER: Final = "text_encoder"
TRANSFORMER: Final = "transformer"
VAE: Final = "vae"
TOKENIZER: Final = "tokenizer"
TEXT_LENGTH: Final = 512
"""diffusers' pipeline gives the text encoder and the transformer this many tokens."""
STATES: Final = (9, 18, 27)
"""The transformer reads these hidden states of the text encoder, side by side."""

IMAGE_LIMITS: Final = ImageLimits(min_side=64, max_pixels=1024 * 1024, max_ratio=8)
"""diffusers' pipeline takes a reference image of these sizes as it is. It refuses or resizes
others."""


@dataclass(frozen=True, kw_only=True)
class Configs:
    """It has the configs of all parts of a checkpoint."""

    text_encoder: Qwen3Config
    transformer: TransformerConfig
    vae: Flux2VaeConfig
    noise: FlowSchedule
    is_distilled: bool
    """Whether the model was trained to make images in few steps without guidance."""

    @classmethod
    def read(cls, files: CheckpointFiles) -> Self:
        """Read and check the configs in `files`.

        Raises:
            CheckpointError: A file is missing, is of an unsupported part, or contradicts another
                file.
        """
        index = files.read_json(INDEX)
        require = partial(require_part, index)
        require(TEXT_ENCODER, "transformers", ("Qwen3ForCausalLM", "Qwen3Model"))
        require(TOKENIZER, "transformers", ("Qwen2TokenizerFast", "Qwen2Tokenizer"))
        require(TRANSFORMER, "diffusers", ("Flux2Transformer2DModel",))
        require(VAE, "diffusers", ("AutoencoderKLFlux2",))
        scheduler = require("scheduler", "diffusers")
        refuse_files_beside(files, TEXT_ENCODER)
        configs = cls(
            text_encoder=Qwen3Config.from_json(
                files.read_json(f"{TEXT_ENCODER}/config.json"), STATES
            ),
            transformer=TransformerConfig.from_json(files.read_json(f"{TRANSFORMER}/config.json")),
            vae=Flux2VaeConfig.from_json(files.read_json(f"{VAE}/config.json")),
            noise=FlowSchedule.from_json(
                files.read_json("scheduler/scheduler_config.json"), scheduler
            ),
            is_distilled=_is_distilled(index.get("is_distilled", False)),
        )
        configs._require_consistent()
        return configs

    def _require_consistent(self) -> None:
        require_equal(
            (
                "transformer in_channels, four times the autoencoder's latent_channels",
                self.transformer.in_channels,
                self.vae.packed_channels,
            ),
            (
                f"transformer joint_attention_dim, {len(STATES)} times the text hidden_size",
                self.transformer.joint_attention_dim,
                len(STATES) * self.text_encoder.hidden_size,
            ),
        )

    @property
    def guided_rows(self) -> int:
        """Return the rows of the transformer's batch for an image with guidance."""
        return 1 if self.is_distilled else 2

    def image_tokens(self, shape: Shape) -> int:
        """Return the tokens of an image."""
        return shape.height * shape.width // self.vae.pixels_per_latent**2


def _is_distilled(value: object) -> bool:
    if not isinstance(value, bool):
        raise CheckpointError(f"{INDEX}: is_distilled={value!r} must be true or false")
    return value

"""Read the configs of a checkpoint of Stable Diffusion 3.

Input: the files of a checkpoint. Output: the configs of its networks, checked alone and against
each other. This module reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles, has_part
from imagefleet.worker.engine.checkpoint.index_parts import (
    refuse_files_beside,
    require_equal,
    require_part,
)
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion_3.parts import (
    CLIPS,
    T5,
    T5_TOKENIZER,
    TRANSFORMER,
    VAE,
)
from imagefleet.worker.engine.families.stable_diffusion_3.transformer_config import (
    TransformerConfig,
)
from imagefleet.worker.engine.networks.clip_text import ClipTextConfig
from imagefleet.worker.engine.networks.latent_packing import PATCH
from imagefleet.worker.engine.networks.t5_text import T5Config
from imagefleet.worker.engine.networks.vae import VaeConfig
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule

PIPELINE: Final = "StableDiffusion3Pipeline"
TEXT_LENGTH: Final = 256
"""diffusers' pipelines give T5 this many tokens."""
GUIDED_ROWS: Final = 2
"""The transformer's batch has this many rows for an image with guidance."""


@dataclass(frozen=True, kw_only=True)
class Configs:
    """It has the configs of all parts of a checkpoint."""

    clips: tuple[ClipTextConfig, ...]
    t5: T5Config | None
    """None if the checkpoint has no T5. The transformer then reads zeros in the place of its
    states."""
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
        index = files.read_json(INDEX)
        require = partial(require_part, index)
        for encoder, tokenizer in CLIPS.items():
            require(encoder, "transformers", ("CLIPTextModelWithProjection",))
            require(tokenizer, "transformers", ("CLIPTokenizer", "CLIPTokenizerFast"))
        require(TRANSFORMER, "diffusers", ("SD3Transformer2DModel",))
        require(VAE, "diffusers", ("AutoencoderKL",))
        scheduler = require("scheduler", "diffusers")
        for encoder in (*CLIPS, T5):
            refuse_files_beside(files, encoder)
        configs = cls(
            clips=tuple(_read_clip(files, encoder) for encoder in CLIPS),
            t5=_read_t5(files, index),
            transformer=TransformerConfig.from_json(files.read_json(f"{TRANSFORMER}/config.json")),
            vae=VaeConfig.from_json(files.read_json(f"{VAE}/config.json")),
            noise=FlowSchedule.from_json(
                files.read_json("scheduler/scheduler_config.json"), scheduler
            ).without_pipeline_levels(),
        )
        configs._require_consistent()
        return configs

    def _require_consistent(self) -> None:
        if self.vae.latents_mean is not None:
            raise CheckpointError(
                f"vae/config.json: latents_mean and latents_std are set, which {PIPELINE} does not "
                "read; take the autoencoder of this model"
            )
        transformer = self.transformer
        clip_width = sum(clip.hidden_size for clip in self.clips)
        if clip_width > transformer.joint_attention_dim:
            raise CheckpointError(
                "transformer/config.json: joint_attention_dim="
                f"{transformer.joint_attention_dim} is below {clip_width}, the hidden_size of both "
                "CLIP text encoders together, whose states diffusers would cut off"
            )
        width = transformer.joint_attention_dim
        require_equal(
            (
                "transformer in_channels, autoencoder latent_channels",
                transformer.in_channels,
                self.vae.latent_channels,
            ),
            (
                "transformer joint_attention_dim, T5's d_model",
                width,
                width if self.t5 is None else self.t5.d_model,
            ),
            (
                "transformer pooled_projection_dim, the projection_dim of both text encoders",
                transformer.pooled_projection_dim,
                sum(clip.projection_dim for clip in self.clips),
            ),
        )

    @property
    def shape_multiple(self) -> int:
        """Return the pixels of which height and width must be multiples."""
        return self.vae.downsampling * PATCH

    @property
    def largest_side(self) -> int:
        """Return the pixels of a side for which there are positions."""
        return self.shape_multiple * self.transformer.pos_embed_max_size

    @property
    def text_tokens(self) -> int:
        """Return the tokens of a text that the transformer reads."""
        return self.clips[0].max_position_embeddings + TEXT_LENGTH

    def image_tokens(self, shape: Shape) -> int:
        """Return the tokens of an image."""
        return shape.height * shape.width // self.shape_multiple**2


def _read_clip(files: CheckpointFiles, encoder: str) -> ClipTextConfig:
    file = f"{encoder}/config.json"
    return ClipTextConfig.from_json(files.read_json(file), file, is_projected=True)


def _read_t5(files: CheckpointFiles, index: Mapping[str, Any]) -> T5Config | None:
    if not has_part(index, T5):
        return None
    require_part(index, T5, "transformers", ("T5EncoderModel",))
    require_part(index, T5_TOKENIZER, "transformers", ("T5TokenizerFast", "T5Tokenizer"))
    file = f"{T5}/config.json"
    return T5Config.from_json(files.read_json(file), file)

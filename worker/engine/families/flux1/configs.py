"""Read the configs of a checkpoint of FLUX.1.

Input: the files of a checkpoint. Output: the configs of its networks, checked alone and against
each other. This module reads no weights.
"""

from dataclasses import dataclass
from functools import partial
from typing import Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.checkpoint.index_parts import (
    refuse_files_beside,
    require_equal,
    require_part,
)
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux1.parts import (
    CLIP,
    CLIP_TOKENIZER,
    T5,
    T5_TOKENIZER,
    TRANSFORMER,
    VAE,
)
from imagefleet.worker.engine.families.flux1.pipelines import PIPELINES, Pipeline
from imagefleet.worker.engine.families.flux1.transformer_config import TransformerConfig
from imagefleet.worker.engine.networks.clip_text import ClipTextConfig
from imagefleet.worker.engine.networks.latent_packing import PATCH
from imagefleet.worker.engine.networks.t5_text import T5Config
from imagefleet.worker.engine.networks.vae import VaeConfig
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule


@dataclass(frozen=True, kw_only=True)
class Configs:
    """It has the configs of all parts of a checkpoint."""

    pipeline: Pipeline
    clip: ClipTextConfig
    t5: T5Config
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
        require(CLIP, "transformers", ("CLIPTextModel",))
        require(CLIP_TOKENIZER, "transformers", ("CLIPTokenizer", "CLIPTokenizerFast"))
        require(T5, "transformers", ("T5EncoderModel",))
        require(T5_TOKENIZER, "transformers", ("T5TokenizerFast", "T5Tokenizer"))
        require(TRANSFORMER, "diffusers", ("FluxTransformer2DModel",))
        require(VAE, "diffusers", ("AutoencoderKL",))
        scheduler = require("scheduler", "diffusers")
        for encoder in (CLIP, T5):
            refuse_files_beside(files, encoder)
        clip, t5 = f"{CLIP}/config.json", f"{T5}/config.json"
        configs = cls(
            pipeline=PIPELINES[str(index["_class_name"])],
            clip=ClipTextConfig.from_json(files.read_json(clip), clip),
            t5=T5Config.from_json(files.read_json(t5), t5),
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
                "vae/config.json: latents_mean and latents_std are set, which the pipelines of "
                "FLUX.1 do not read; take the autoencoder of this model"
            )
        require_equal(
            (
                "transformer in_channels, four times the channels that the pipeline gives it",
                self.transformer.in_channels,
                PATCH**2 * self.input_channels,
            ),
            (
                "transformer out_channels, four times the autoencoder's latent_channels",
                self.transformer.out_channels,
                PATCH**2 * self.vae.latent_channels,
            ),
            (
                "transformer joint_attention_dim, T5's d_model",
                self.transformer.joint_attention_dim,
                self.t5.d_model,
            ),
            (
                "transformer pooled_projection_dim, CLIP's hidden_size",
                self.transformer.pooled_projection_dim,
                self.clip.hidden_size,
            ),
        )

    @property
    def input_channels(self) -> int:
        """Return the channels of the latents that the pipeline gives the transformer."""
        latents, image_input = self.vae.latent_channels, self.pipeline.image_input
        if image_input is ImageInput.REFERENCE:
            return latents  # those of the image are further tokens
        return latents + image_input.channels(latents, self.vae.downsampling)

    @property
    def texts(self) -> int:
        """Return how many texts of an image are encoded: with `true_cfg_scale` both."""
        return 2 if self.pipeline.true_guidance else 1

    @property
    def text_length(self) -> int:
        """Return how many tokens T5 gets: diffusers' default, or for a model without an embedding
        of the guidance (schnell) what its page says."""
        return 512 if self.transformer.guidance_embeds else 256

    @property
    def shape_multiple(self) -> int:
        """Return the pixels of which height and width must be multiples."""
        return self.vae.downsampling * PATCH

    def image_tokens(self, shape: Shape) -> int:
        """Return the tokens of an image."""
        return shape.height * shape.width // self.shape_multiple**2

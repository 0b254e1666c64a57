"""Describe one model of Z-Image by its configs: see `FamilyModel`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from flax import nnx

from imagefleet.shared.jobs.default_strengths import DefaultStrengths
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flow_model import FlowModel
from imagefleet.worker.engine.families.z_image.configs import (
    TEXT_ENCODER,
    TEXT_LENGTH,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.z_image.denoiser import ZImageDenoiser
from imagefleet.worker.engine.families.z_image.flops import image_flops
from imagefleet.worker.engine.families.z_image.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.z_image.text_states import TextStates
from imagefleet.worker.engine.families.z_image.transformer import Transformer
from imagefleet.worker.engine.families.z_image.workspace import workspace_bytes
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Text
from imagefleet.worker.engine.networks.vae import Vae
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from imagefleet.worker.engine.tokenizers.qwen import QwenTokenizer

_IMAGE_USE: Final = ImageUse(
    default_strengths=DefaultStrengths(image=0.6, mask=1.0, rounds_up=True)
)
"""It has the defaults of diffusers' pipelines of Z-Image."""


@dataclass(frozen=True)
class ZImage(FlowModel):
    """It is one model of the family."""

    title: ClassVar[str] = "Z-Image"
    configs: Configs
    default_steps: int = 50
    default_guidance: float = 5.0
    unguided_scale: float = 0.0
    text_networks: tuple[str, ...] = (TEXT_ENCODER,)
    image_use: ImageUse = _IMAGE_USE
    lora_names: LoraNames = LORA_NAMES

    @property
    def pixels_per_latent(self) -> int:
        return self.configs.vae.downsampling

    @property
    def shape_multiple(self) -> int:
        return self.configs.shape_multiple

    def noise_schedule(self, shape: Shape) -> FlowSchedule:
        """Return the schedule, which may be shifted further for larger images."""
        return self.configs.noise.shifted_for(self.configs.image_tokens(shape))

    def load_tokenizer(self, files: CheckpointFiles) -> PromptTokenizer:
        tokenizer = QwenTokenizer(files, TOKENIZER, length=TEXT_LENGTH, thinks=True)
        text = self.configs.text_encoder
        tokenizer.require_fits(TEXT_ENCODER, text.max_position_embeddings, text.vocab_size)
        return PromptTokenizer([tokenizer])

    def networks(self) -> dict[str, nnx.Module]:
        configs, int8 = self.configs, self.int8_weights
        return {
            TEXT_ENCODER: abstract_network(Qwen3Text, configs.text_encoder, int8=int8),
            TRANSFORMER: abstract_network(Transformer, configs.transformer, int8=int8),
            VAE: abstract_network(Vae, configs.vae),
        }

    def assemble(
        self,
        networks: Mapping[str, nnx.Module],
        parameters: Mapping[str, Params],
        dtype: np.dtype[Any],
    ) -> tuple[DiffusionPrograms, Weights]:
        configs = self.configs
        graphs: dict[str, Any] = {name: nnx.graphdef(each) for name, each in networks.items()}
        programs = DiffusionPrograms(
            denoiser=ZImageDenoiser(
                text_encoding=TextStates(
                    graphs[TEXT_ENCODER], configs.text_encoder.hidden_size, dtype
                ),
                transformer=graphs[TRANSFORMER],
                dtype=dtype,
            ),
            vae=graphs[VAE],
            safety=None,
            latent_channels=configs.vae.latent_channels,
            latent_scale=LatentScale.of(configs.vae),
            pixels_per_latent=configs.vae.downsampling,
            dtype=dtype,
        )
        weights = Weights(
            text=(parameters[TEXT_ENCODER],),
            denoiser=parameters[TRANSFORMER],
            vae=parameters[VAE],
            safety=None,
        )
        return programs, weights

    def workspace_bytes(
        self, networks: Mapping[str, nnx.Module], shape: Shape, workload: Workload
    ) -> int:
        return workspace_bytes(self.configs, shape, workload)

    def flops(
        self, networks: Mapping[str, nnx.Module], shape: Shape, prompt_chunks: int = 1
    ) -> ImageFlops:
        return image_flops(self.configs, networks, shape)

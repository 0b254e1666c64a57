"""Describe one model of FLUX.2 klein by its configs: see `FamilyModel`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
from flax import nnx

from imagefleet.shared.jobs.default_strengths import NO_STRENGTH
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flow_model import FlowModel
from imagefleet.worker.engine.families.flux2_klein.configs import (
    IMAGE_LIMITS,
    TEXT_ENCODER,
    TEXT_LENGTH,
    TOKENIZER,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.flux2_klein.denoiser import Flux2KleinDenoiser
from imagefleet.worker.engine.families.flux2_klein.flops import image_flops
from imagefleet.worker.engine.families.flux2_klein.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.flux2_klein.shift import EmpiricalShift
from imagefleet.worker.engine.families.flux2_klein.text_states import TextStates
from imagefleet.worker.engine.families.flux2_klein.transformer import Transformer
from imagefleet.worker.engine.families.flux2_klein.vae import Flux2Vae
from imagefleet.worker.engine.families.flux2_klein.workspace import workspace_bytes
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Text
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from imagefleet.worker.engine.tokenizers.qwen import QwenTokenizer

_IMAGE_USE: Final = ImageUse(default_strengths=NO_STRENGTH, limits=IMAGE_LIMITS)
"""An `image` is a reference image."""


@dataclass(frozen=True)
class Flux2Klein(FlowModel):
    """It is one model of the family."""

    title: ClassVar[str] = "FLUX.2 klein"
    configs: Configs
    unguided_scale: float = 1.0
    text_networks: tuple[str, ...] = (TEXT_ENCODER,)
    image_use: ImageUse = _IMAGE_USE
    lora_names: LoraNames = LORA_NAMES

    @property
    def default_steps(self) -> int:
        """Return the steps of diffusers' pipeline, or what its page has for distilled models."""
        return 4 if self.configs.is_distilled else 50

    @property
    def default_guidance(self) -> float:
        return 1.0 if self.configs.is_distilled else 4.0

    @property
    def pixels_per_latent(self) -> int:
        return self.configs.vae.pixels_per_latent

    @property
    def shape_multiple(self) -> int:
        return self.configs.vae.pixels_per_latent

    def noise_schedule(self, shape: Shape) -> FlowSchedule:
        """Return the schedule, which may be shifted by the tokens of an image and the steps."""
        noise, shift = self.configs.noise, EmpiricalShift(self.configs.image_tokens(shape))
        return replace(noise.refusing_pipeline_levels(), image_shift=shift)

    def load_tokenizer(self, files: CheckpointFiles) -> PromptTokenizer:
        tokenizer = QwenTokenizer(files, TOKENIZER, length=TEXT_LENGTH, thinks=False)
        text = self.configs.text_encoder
        tokenizer.require_fits(TEXT_ENCODER, text.max_position_embeddings, text.vocab_size)
        return PromptTokenizer([tokenizer])

    def networks(self) -> dict[str, nnx.Module]:
        configs, int8 = self.configs, self.int8_weights
        return {
            TEXT_ENCODER: abstract_network(Qwen3Text, configs.text_encoder, int8=int8),
            TRANSFORMER: abstract_network(Transformer, configs.transformer, int8=int8),
            VAE: abstract_network(Flux2Vae, configs.vae),
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
            denoiser=Flux2KleinDenoiser(
                text_encoding=TextStates(
                    encoder=graphs[TEXT_ENCODER],
                    width=configs.transformer.joint_attention_dim,
                    dtype=dtype,
                    texts=configs.guided_rows,
                ),
                transformer=graphs[TRANSFORMER],
                dtype=dtype,
                guided_rows=configs.guided_rows,
            ),
            vae=graphs[VAE],
            safety=None,
            latent_channels=configs.vae.packed_channels,
            latent_scale=LatentScale(factor=1.0),  # the autoencoder normalises its latents
            pixels_per_latent=configs.vae.pixels_per_latent,
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
        counted = image_flops(self.configs, networks, shape)
        return replace(counted, peak_shares={}) if self.int8_weights else counted

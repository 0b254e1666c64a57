"""Describe one model of FLUX.1 by its configs: see `FamilyModel`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flow_model import FlowModel
from imagefleet.worker.engine.families.flux1.configs import Configs
from imagefleet.worker.engine.families.flux1.denoiser import Flux1Denoiser
from imagefleet.worker.engine.families.flux1.flops import image_flops
from imagefleet.worker.engine.families.flux1.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.flux1.parts import (
    CLIP,
    CLIP_TOKENIZER,
    T5,
    T5_TOKENIZER,
    TRANSFORMER,
    VAE,
)
from imagefleet.worker.engine.families.flux1.transformer import Transformer
from imagefleet.worker.engine.families.flux1.workspace import workspace_bytes
from imagefleet.worker.engine.families.t5_states import T5States
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.clip_text import ClipText
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.networks.t5_text import T5Text
from imagefleet.worker.engine.networks.vae import Vae
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.flow_schedule import FlowSchedule
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from imagefleet.worker.engine.tokenizers.t5 import T5Tokenizer


@dataclass(frozen=True)
class Flux1(FlowModel):
    """It is one model of the family."""

    title: ClassVar[str] = "FLUX.1"
    configs: Configs
    unguided_scale: float = 1.0
    text_networks: tuple[str, ...] = (T5,)
    lora_names: LoraNames = LORA_NAMES

    @property
    def default_steps(self) -> int:
        """Return the steps of diffusers' pipeline, or what the page of schnell has."""
        configs = self.configs
        return configs.pipeline.num_inference_steps if configs.transformer.guidance_embeds else 4

    @property
    def default_guidance(self) -> float:
        configs = self.configs
        return configs.pipeline.guidance_scale if configs.transformer.guidance_embeds else 1.0

    @property
    def image_use(self) -> ImageUse:
        return self.configs.pipeline.image_use

    @property
    def pixels_per_latent(self) -> int:
        return self.configs.vae.downsampling

    @property
    def shape_multiple(self) -> int:
        return self.configs.shape_multiple

    def noise_schedule(self, shape: Shape) -> FlowSchedule:
        """Return the schedule, which may be shifted further for larger images."""
        noise = self.configs.noise.refusing_pipeline_levels()
        return noise.shifted_for(self.configs.image_tokens(shape))

    def load_tokenizer(self, files: CheckpointFiles) -> PromptTokenizer:
        """Load the tokenizers, that of T5 first, whose states are kept."""
        configs = self.configs
        t5 = T5Tokenizer(files, T5_TOKENIZER, length=configs.text_length)
        t5.require_fits(T5, configs.t5.vocab_size)
        clip = ClipTokenizer(files, CLIP_TOKENIZER)
        clip.require_fits(CLIP, configs.clip.max_position_embeddings, configs.clip.vocab_size)
        return PromptTokenizer([t5, clip])

    def networks(self) -> dict[str, nnx.Module]:
        configs, int8 = self.configs, self.int8_weights
        return {
            T5: abstract_network(T5Text, configs.t5, int8=int8),
            CLIP: abstract_network(ClipText, configs.clip),
            TRANSFORMER: abstract_network(Transformer, configs.transformer, int8=int8),
            VAE: abstract_network(Vae, configs.vae),
        }

    def assemble(
        self,
        networks: Mapping[str, nnx.Module],
        parameters: Mapping[str, Params],
        dtype: np.dtype[Any],
    ) -> tuple[DiffusionPrograms, Weights]:
        vae = self.configs.vae
        graphs: dict[str, Any] = {name: nnx.graphdef(each) for name, each in networks.items()}
        programs = DiffusionPrograms(
            denoiser=Flux1Denoiser(
                text_encoding=T5States(
                    graphs[T5], self.configs.t5.d_model, dtype, self.configs.texts
                ),
                clip=graphs[CLIP],
                transformer=graphs[TRANSFORMER],
                dtype=dtype,
                image_input=self.configs.pipeline.image_input,
                true_guidance=self.configs.pipeline.true_guidance,
            ),
            vae=graphs[VAE],
            safety=None,
            latent_channels=vae.latent_channels,
            latent_scale=LatentScale.of(vae),
            pixels_per_latent=vae.downsampling,
            dtype=dtype,
        )
        weights = Weights(
            text=(parameters[T5], parameters[CLIP]),
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

"""Describe one model of Stable Diffusion 3 by its configs: see `FamilyModel`."""

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
from imagefleet.worker.engine.families.stable_diffusion_3.configs import TEXT_LENGTH, Configs
from imagefleet.worker.engine.families.stable_diffusion_3.denoiser import StableDiffusion3Denoiser
from imagefleet.worker.engine.families.stable_diffusion_3.flops import image_flops
from imagefleet.worker.engine.families.stable_diffusion_3.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.stable_diffusion_3.parts import (
    CLIPS,
    T5,
    T5_TOKENIZER,
    TRANSFORMER,
    VAE,
)
from imagefleet.worker.engine.families.stable_diffusion_3.transformer import Transformer
from imagefleet.worker.engine.families.stable_diffusion_3.workspace import workspace_bytes
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

_IMAGE_USE: Final = ImageUse(
    default_strengths=DefaultStrengths(image=0.6, mask=0.6, rounds_up=True)
)
"""It has the defaults of diffusers' pipelines of Stable Diffusion 3."""


@dataclass(frozen=True)
class StableDiffusion3(FlowModel):
    """It is one model of the family."""

    title: ClassVar[str] = "Stable Diffusion 3"
    configs: Configs
    default_steps: int = 28
    default_guidance: float = 7.0
    unguided_scale: float = 1.0
    image_use: ImageUse = _IMAGE_USE
    lora_names: LoraNames = LORA_NAMES

    @property
    def text_networks(self) -> tuple[str, ...]:
        """Return T5, if the model has it. CLIP runs within `begin`."""
        return () if self.configs.t5 is None else (T5,)

    @property
    def max_clip_skip(self) -> int:
        """Return the most layers of both CLIP that a prompt may skip. They are counted from the
        penultimate hidden states."""
        return min(clip.num_hidden_layers for clip in self.configs.clips) - 1

    @property
    def native_shape(self) -> Shape:
        side = self.configs.transformer.sample_size * self.configs.vae.downsampling
        return Shape(height=side, width=side)

    @property
    def largest_side(self) -> int:
        return self.configs.largest_side

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
        """Load the tokenizers, that of T5 first, whose states are kept."""
        configs = self.configs
        clips = []
        for (encoder, folder), config in zip(CLIPS.items(), configs.clips, strict=True):
            clip = ClipTokenizer(files, folder)
            clip.require_fits(encoder, config.max_position_embeddings, config.vocab_size)
            clips.append(clip)
        PromptTokenizer(clips).require_equal_lengths()  # their states lie side by side
        if configs.t5 is None:
            return PromptTokenizer(clips)
        t5 = T5Tokenizer(files, T5_TOKENIZER, length=TEXT_LENGTH)
        t5.require_fits(T5, configs.t5.vocab_size)
        return PromptTokenizer([t5, *clips])

    def networks(self) -> dict[str, nnx.Module]:
        configs, int8 = self.configs, self.int8_weights
        clips = zip(CLIPS, configs.clips, strict=True)
        networks = {name: abstract_network(ClipText, config) for name, config in clips}
        if configs.t5 is not None:
            networks[T5] = abstract_network(T5Text, configs.t5, int8=int8)
        networks[TRANSFORMER] = abstract_network(Transformer, configs.transformer, int8=int8)
        networks[VAE] = abstract_network(Vae, configs.vae)
        return networks

    def assemble(
        self,
        networks: Mapping[str, nnx.Module],
        parameters: Mapping[str, Params],
        dtype: np.dtype[Any],
    ) -> tuple[DiffusionPrograms, Weights]:
        vae, t5 = self.configs.vae, self.configs.t5
        graphs: dict[str, Any] = {name: nnx.graphdef(each) for name, each in networks.items()}
        programs = DiffusionPrograms(
            denoiser=StableDiffusion3Denoiser(
                text_encoding=(
                    None if t5 is None else T5States(graphs[T5], t5.d_model, dtype, texts=2)
                ),
                clips=tuple(graphs[name] for name in CLIPS),
                transformer=graphs[TRANSFORMER],
                dtype=dtype,
            ),
            vae=graphs[VAE],
            safety=None,
            latent_channels=vae.latent_channels,
            latent_scale=LatentScale.of(vae),
            pixels_per_latent=vae.downsampling,
            dtype=dtype,
        )
        weights = Weights(
            text=tuple(parameters[name] for name in (*self.text_networks, *CLIPS)),
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

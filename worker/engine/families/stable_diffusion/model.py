"""Describe one model of Stable Diffusion by its configs: see `FamilyModel`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
from flax import nnx

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.control_net import ControlNet
from imagefleet.worker.engine.families.stable_diffusion.control_net_files import (
    ControlNetFiles,
    read_control_nets,
)
from imagefleet.worker.engine.families.stable_diffusion.control_nets import (
    NETS,
    UNET,
    StableDiffusionControlNets,
)
from imagefleet.worker.engine.families.stable_diffusion.denoiser import StableDiffusionDenoiser
from imagefleet.worker.engine.families.stable_diffusion.flops import image_flops
from imagefleet.worker.engine.families.stable_diffusion.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.stable_diffusion.prompt_encoder import PromptEncoder
from imagefleet.worker.engine.families.stable_diffusion.prompt_tokenizer import load_tokenizer
from imagefleet.worker.engine.families.stable_diffusion.textual_inversion import (
    ExtendedEmbedding,
    VectorsById,
    add_textual_inversions,
    read_textual_inversions,
)
from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
from imagefleet.worker.engine.families.stable_diffusion.workspace import workspace_bytes
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.clip_text import ClipText
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
from imagefleet.worker.engine.networks.safety import SafetyChecker
from imagefleet.worker.engine.networks.vae import Vae
from imagefleet.worker.engine.options.control_net_options import (
    ControlNetOption,
)
from imagefleet.worker.engine.options.textual_inversion_options import (
    LoadedInversion,
    TextualInversionOption,
)
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer

_UNET: Final = "unet"
_VAE: Final = "vae"
_SAFETY: Final = "safety_checker"


@dataclass(frozen=True)
class StableDiffusion:
    """It is one model of the family."""

    configs: Configs
    inversions: tuple[LoadedInversion, ...] = ()
    vectors: Mapping[str, VectorsById] = field(default_factory=dict, repr=False)
    """It has the vectors of textual inversions, by text encoder."""
    lora_names: LoraNames = LORA_NAMES
    nets: tuple[ControlNetFiles, ...] = ()
    """These are the ControlNets that jobs may use."""

    @property
    def default_steps(self) -> int:
        return self.configs.pipeline.num_inference_steps

    @property
    def default_guidance(self) -> float:
        return self.configs.pipeline.guidance_scale

    @property
    def unguided_scale(self) -> float:
        return 1.0

    @property
    def native_shape(self) -> Shape:
        return self.configs.native_shape

    @property
    def pixels_per_latent(self) -> int:
        return self.configs.vae.downsampling

    @property
    def shape_multiple(self) -> int:
        return self.configs.shape_multiple

    @property
    def largest_side(self) -> None:
        return None

    def noise_schedule(self, shape: Shape) -> NoiseSchedule:
        """Return the schedule, which is that of every shape."""
        return self.configs.noise

    @property
    def max_clip_skip(self) -> int:
        return self.configs.max_clip_skip

    @property
    def rescales_guidance(self) -> bool:
        return self.configs.rescales_guidance

    @property
    def text_networks(self) -> tuple[str, ...]:
        return ()

    @property
    def weighs_prompts(self) -> bool:
        return True

    @property
    def image_use(self) -> ImageUse:
        return self.configs.pipeline.image_use

    @property
    def latent_format(self) -> LatentFormat | None:
        return self.configs.latent_format

    def load_tokenizer(self, files: CheckpointFiles) -> PromptTokenizer:
        return load_tokenizer(files, self.configs)

    def with_textual_inversions(
        self, options: Sequence[TextualInversionOption], tokenizer: PromptTokenizer
    ) -> Self:
        inversions = read_textual_inversions(options, self.configs)
        vectors = add_textual_inversions(inversions, tokenizer, self.configs)
        added = {name: each for name, each in vectors.items() if each}
        return replace(
            self,
            configs=self.configs.with_tokens(added),
            inversions=tuple(each.loaded for each in inversions),
            vectors=added,
        )

    def with_control_nets(self, options: Sequence[ControlNetOption]) -> Self:
        return replace(self, nets=read_control_nets(options, self.configs))

    @property
    def controlnets(self) -> dict[str, str]:
        return {net.name: net.files.digest() for net in self.nets}

    def with_int8_weights(self) -> Self:
        raise ConfigurationError(
            "IMAGEFLEET_INT8_WEIGHTS: models of Stable Diffusion have no weights of 8 bits here; "
            "set it to false"
        )

    def networks(self) -> dict[str, nnx.Module]:
        configs = self.configs
        networks = {
            name: abstract_network(ClipText, config)
            for name, config in zip(
                configs.pipeline.text_encoders, configs.text_encoders, strict=True
            )
        }
        networks[_UNET] = abstract_network(UNet, configs.unet)
        networks[_VAE] = abstract_network(Vae, configs.vae)
        if configs.safety is not None:
            networks[_SAFETY] = abstract_network(SafetyChecker, configs.safety)
        for net in self.nets:
            networks[net.network] = abstract_network(ControlNet, net.config)
        return networks

    def open_weights(
        self, files: CheckpointFiles, keys: Mapping[str, Sequence[str]]
    ) -> dict[str, TensorFiles]:
        of_nets = {net.network: net.open_weights() for net in self.nets}
        own = {name: listed for name, listed in keys.items() if name not in of_nets}
        opened = files.open_weights(tuple(own), own)
        extended = {
            name: ExtendedEmbedding(opened[name], vectors) for name, vectors in self.vectors.items()
        }
        return {**opened, **extended, **of_nets}

    def assemble(
        self,
        networks: Mapping[str, nnx.Module],
        parameters: Mapping[str, Params],
        dtype: np.dtype[Any],
    ) -> tuple[DiffusionPrograms, Weights]:
        configs = self.configs
        graphs: dict[str, Any] = {name: nnx.graphdef(each) for name, each in networks.items()}
        text_encoders = configs.pipeline.text_encoders
        prompt_encoder = PromptEncoder(
            networks=tuple(graphs[name] for name in text_encoders),
            force_zeros_for_empty_prompt=configs.force_zeros_for_empty_prompt,
            is_xl=configs.pipeline.is_xl,
        )
        unet, control = parameters[_UNET], None
        if self.nets:
            control = StableDiffusionControlNets(
                graphs=tuple(graphs[net.network] for net in self.nets),
                width=configs.unet.block_out_channels[0],
                dtype=dtype,
            )
            unet = {UNET: unet, NETS: [parameters[net.network] for net in self.nets]}
        programs = DiffusionPrograms(
            denoiser=StableDiffusionDenoiser(
                prompt_encoder=prompt_encoder,
                unet=graphs[_UNET],
                dtype=dtype,
                image_input=configs.pipeline.image_input,
                has_aesthetic_scores=configs.pipeline.has_aesthetic_scores,
                control=control,
            ),
            vae=graphs[_VAE],
            safety=graphs.get(_SAFETY),
            latent_channels=configs.vae.latent_channels,
            latent_scale=LatentScale.of(configs.vae),
            pixels_per_latent=configs.vae.downsampling,
            dtype=dtype,
            control=control,
        )
        weights = Weights(
            text=tuple(parameters[name] for name in text_encoders),
            denoiser=unet,
            vae=parameters[_VAE],
            safety=parameters.get(_SAFETY),
        )
        return programs, weights

    def workspace_bytes(
        self, networks: Mapping[str, nnx.Module], shape: Shape, workload: Workload
    ) -> int:
        return workspace_bytes(self.configs, networks, shape, workload, control_nets=len(self.nets))

    def flops(
        self, networks: Mapping[str, nnx.Module], shape: Shape, prompt_chunks: int = 1
    ) -> ImageFlops:
        return image_flops(self.configs, networks, shape, prompt_chunks)

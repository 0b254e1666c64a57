"""Define what a family of models is to the rest of the engine.

A family is a folder beside this file: configs, networks, prompts, names of weights, memory. The
loader asks it for a `FamilyModel`, and everything that differs between families is behind these two
protocols. `registry.py` lists the families. Their part of the compiled programs is the `Denoiser`
of `sampling/denoiser_protocol.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora_keys import LoraNames
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageUse
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.engine.networks.matmul_flops import ImageFlops
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
from imagefleet.worker.engine.schedulers.registry import Schedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer


class FamilyModel(Protocol):
    """It is what the configs of one checkpoint say. It holds no weights and uses no devices."""

    @property
    def default_steps(self) -> int:
        """Return the steps of diffusers' pipeline where a job gives none."""

    @property
    def default_guidance(self) -> float:
        """Return the guidance scale of diffusers' pipeline where a job gives none."""

    @property
    def unguided_scale(self) -> float:
        """Return the guidance scale up to which a job has no guidance in diffusers' pipeline."""

    @property
    def native_shape(self) -> Shape:
        """Return the shape at which the model was trained.

        Raises:
            ConfigurationError: the checkpoint does not say.
        """

    @property
    def pixels_per_latent(self) -> int:
        """Return how many pixels a latent stands for, along each side."""

    @property
    def shape_multiple(self) -> int:
        """Return the pixels of which height and width must be multiples."""

    @property
    def largest_side(self) -> int | None:
        """Return the most pixels of height and width. None: there is no limit."""

    def noise_schedule(self, shape: Shape) -> Schedule:
        """Return the noise schedule for images of a shape. Equal schedules share step tables."""

    @property
    def max_clip_skip(self) -> int:
        """Return the most layers of the text encoders that a job may skip. 0: there is no
        `clip_skip`."""

    @property
    def rescales_guidance(self) -> bool:
        """Return whether jobs may have `guidance_rescale`."""

    @property
    def text_networks(self) -> tuple[str, ...]:
        """Return the networks that `TextEncoding` runs, and no other program. Texts are then kept,
        and the host may encode them. The weights of such a network are the first of
        `Weights.text`."""

    @property
    def weighs_prompts(self) -> bool:
        """Return whether jobs may have `prompt_weighting`."""

    @property
    def image_use(self) -> ImageUse:
        """Return how the model uses the `image` of a job."""

    @property
    def latent_format(self) -> LatentFormat | None:
        """Return the latents that jobs may pass on and take. None: there are no such jobs."""

    def load_tokenizer(self, files: CheckpointFiles) -> PromptTokenizer:
        """Load the tokenizers of all text encoders.

        Raises:
            CheckpointError: files are missing, are of another kind of tokenizer, or do not fit
                their text encoders.
        """

    @property
    def inversions(self) -> tuple[LoadedInversion, ...]:
        """Return the textual inversions that were added."""

    def with_textual_inversions(
        self, options: Sequence[TextualInversionOption], tokenizer: PromptTokenizer
    ) -> Self:
        """Return the model with textual inversions, whose tokens are added to the tokenizer.

        Raises:
            CheckpointError: a file is damaged or for another model, or the family has none.
        """

    @property
    def controlnets(self) -> dict[str, str]:
        """Return the digest of each ControlNet that jobs may use, by name. Its files were read."""

    def with_control_nets(self, options: Sequence[ControlNetOption]) -> Self:
        """Return the model with ControlNets, which are further networks of it.

        Raises:
            CheckpointError: a net cannot be read, or is for another model.
            ConfigurationError: the family, or this kind of model, takes none.
        """

    def with_int8_weights(self) -> Self:
        """Return the model with integers of 8 bits as weights of its text encoder's and
        denoiser's blocks, which `round_blocks` names.

        Raises:
            ConfigurationError: the family has none.
        """

    def networks(self) -> dict[str, nnx.Module]:
        """Return the networks without weights, by their folders. Equal models share them."""

    @property
    def lora_names(self) -> LoraNames:
        """Return how LoRA files name the layers of the networks."""

    def open_weights(
        self, files: CheckpointFiles, keys: Mapping[str, Sequence[str]]
    ) -> dict[str, TensorFiles]:
        """Open the weights of the networks, with the vectors of textual inversions.

        Args:
            files: Of the checkpoint.
            keys: By network: the keys that it has.

        Raises:
            CheckpointError: a network has no weights, or a file is damaged.
        """

    def assemble(
        self,
        networks: Mapping[str, nnx.Module],
        parameters: Mapping[str, Params],
        dtype: np.dtype[Any],
    ) -> tuple[DiffusionPrograms, Weights]:
        """Return the programs of the model and its weights.

        Args:
            networks: From `networks`.
            parameters: Of each network, on the devices or abstract.
            dtype: That of the parameters.
        """

    def workspace_bytes(
        self, networks: Mapping[str, nnx.Module], shape: Shape, workload: Workload
    ) -> int:
        """Estimate the bytes that a device needs for a batch of a shape, besides the weights."""

    def flops(
        self, networks: Mapping[str, nnx.Module], shape: Shape, prompt_chunks: int = 1
    ) -> ImageFlops:
        """Count the FLOPs of an image of a shape."""


class Family(Protocol):
    """Its models share networks, prompts and names of weights."""

    @property
    def name(self) -> str:
        """Return the name of the family in sentences."""

    @property
    def pipelines(self) -> Sequence[str]:
        """Return diffusers' pipeline classes, as in `_class_name` of model_index.json."""

    @property
    def networks(self) -> Sequence[str]:
        """Return the folders of networks that its checkpoints may have."""

    @property
    def original_format(self) -> OriginalFormat | None:
        """Return the format of its models in one file. None: they are read from folders only."""

    def read(self, files: CheckpointFiles) -> FamilyModel:
        """Read and check the configs of a checkpoint of this family.

        Raises:
            CheckpointError: a file is missing, unsupported, or contradicts another file.
        """

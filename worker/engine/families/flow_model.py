"""What all models with flow matching have in common: see `FamilyModel`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.engine.options.control_net_options import (
    ControlNetOption,
)
from imagefleet.worker.engine.options.textual_inversion_options import (
    LoadedInversion,
    TextualInversionOption,
)
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer

_NATIVE_SHAPE: Final = Shape(height=1024, width=1024)
"""diffusers' pipelines of all these families make images of this size."""


@dataclass(frozen=True, kw_only=True)
class FlowModel:
    """It has no textual inversions, and may have weights of 8 bits."""

    title: ClassVar[str]
    """Errors name the family so."""
    rescales_guidance: bool = False
    weighs_prompts: bool = False
    latent_format: LatentFormat | None = None
    inversions: tuple[LoadedInversion, ...] = ()
    int8_weights: bool = False

    @property
    def native_shape(self) -> Shape:
        return _NATIVE_SHAPE

    @property
    def largest_side(self) -> int | None:
        return None

    @property
    def max_clip_skip(self) -> int:
        return 0

    def with_textual_inversions(
        self, options: Sequence[TextualInversionOption], tokenizer: PromptTokenizer
    ) -> Self:
        if options:
            raise CheckpointError(
                f"textual inversion {options[0].name}: {self.title} has none; remove it from "
                "IMAGEFLEET_TEXTUAL_INVERSION"
            )
        return self

    @property
    def controlnets(self) -> dict[str, str]:
        return {}

    def with_control_nets(self, options: Sequence[ControlNetOption]) -> Self:
        if options:
            raise ConfigurationError(
                f"controlnet {options[0].name}: {self.title} takes no ControlNet here; unset "
                "IMAGEFLEET_CONTROLNET"
            )
        return self

    def with_int8_weights(self) -> Self:
        return replace(self, int8_weights=True)

    def open_weights(
        self, files: CheckpointFiles, keys: Mapping[str, Sequence[str]]
    ) -> dict[str, TensorFiles]:
        return files.open_weights(tuple(keys), keys)

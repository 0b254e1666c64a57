"""FLUX.2 klein, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.families.flux2_klein.configs import (
    PIPELINE,
    TEXT_ENCODER,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.flux2_klein.model import Flux2Klein


class Flux2KleinFamily:
    """It is the family of diffusers' Flux2KleinPipeline."""

    name = Flux2Klein.title
    pipelines: Sequence[str] = (PIPELINE,)
    networks: Sequence[str] = (TEXT_ENCODER, TRANSFORMER, VAE)
    original_format: OriginalFormat | None = None

    def read(self, files: CheckpointFiles) -> Flux2Klein:
        """Read the configs. The pipeline has no safety checker."""
        return Flux2Klein(Configs.read(files))


FLUX2_KLEIN: Final = Flux2KleinFamily()
"""It is the family."""

"""FLUX.1 schnell and dev, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.families.flux1.configs import (
    CLIP,
    PIPELINE,
    T5,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.flux1.model import Flux1


class Flux1Family:
    """It is the family of diffusers' FluxPipeline."""

    name = Flux1.title
    pipelines: Sequence[str] = (PIPELINE,)
    networks: Sequence[str] = (CLIP, T5, TRANSFORMER, VAE)
    original_format: OriginalFormat | None = None

    def read(self, files: CheckpointFiles, *, safety_checker: bool = True) -> Flux1:
        """Read the configs. The pipeline has no safety checker."""
        return Flux1(Configs.read(files))


FLUX1: Final = Flux1Family()

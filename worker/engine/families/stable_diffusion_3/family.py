"""Stable Diffusion 3 and 3.5, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.families.stable_diffusion_3.configs import PIPELINE, Configs
from imagefleet.worker.engine.families.stable_diffusion_3.model import StableDiffusion3
from imagefleet.worker.engine.families.stable_diffusion_3.parts import CLIPS, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.families.stable_diffusion_3.single_file_keys import (
    StableDiffusion3Format,
)


class StableDiffusion3Family:
    """It is the family of diffusers' StableDiffusion3Pipeline."""

    name = StableDiffusion3.title
    pipelines: Sequence[str] = (PIPELINE,)
    networks: Sequence[str] = (*CLIPS, T5, TRANSFORMER, VAE)
    original_format: OriginalFormat | None = StableDiffusion3Format()

    def read(self, files: CheckpointFiles) -> StableDiffusion3:
        """Read the configs. The pipeline has no safety checker."""
        return StableDiffusion3(Configs.read(files))


STABLE_DIFFUSION_3: Final = StableDiffusion3Family()

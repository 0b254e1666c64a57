"""Z-Image and Z-Image-Turbo, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.families.z_image.configs import (
    PIPELINE,
    TEXT_ENCODER,
    TRANSFORMER,
    VAE,
    Configs,
)
from imagefleet.worker.engine.families.z_image.model import ZImage


class ZImageFamily:
    """It is the family of diffusers' ZImagePipeline."""

    name = ZImage.title
    pipelines: Sequence[str] = (PIPELINE,)
    networks: Sequence[str] = (TEXT_ENCODER, TRANSFORMER, VAE)
    original_format: OriginalFormat | None = None

    def read(self, files: CheckpointFiles) -> ZImage:
        """Read the configs. The pipeline has no safety checker."""
        return ZImage(Configs.read(files))


Z_IMAGE: Final = ZImageFamily()

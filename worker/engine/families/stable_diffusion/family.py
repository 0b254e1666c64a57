"""Stable Diffusion 1, 2 and XL and their relatives, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import (
    PIPELINES,
    SCHEDULER,
    PipelineIndex,
)
from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import (
    base_model,
    is_read,
    origins,
)
from imagefleet.worker.engine.families.stable_diffusion.training_markers import check_markers


class StableDiffusionFormat:
    """It is the original format of Stable Diffusion. See
    `checkpoint.single_file.OriginalFormat`."""

    base_model = staticmethod(base_model)
    origins = staticmethod(origins)
    is_read = staticmethod(is_read)

    def check(self, file: Path, whole: TensorFiles, files: CheckpointFiles) -> None:
        index = PipelineIndex.from_json(files.read_json(INDEX))
        check_markers(file, whole, index.noise_schedule(files.read_json(SCHEDULER)))


class StableDiffusionFamily:
    """It is the family of the pipelines in `pipeline_index.py`."""

    name = "Stable Diffusion 1, 2 or XL"
    pipelines: Sequence[str] = tuple(PIPELINES)
    networks: Sequence[str] = ("text_encoder", "text_encoder_2", "unet", "vae", "safety_checker")
    original_format: OriginalFormat | None = StableDiffusionFormat()

    def read(self, files: CheckpointFiles) -> StableDiffusion:
        return StableDiffusion(Configs.read(files))


STABLE_DIFFUSION: Final = StableDiffusionFamily()

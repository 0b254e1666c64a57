"""FLUX.1 schnell, dev, Fill and Kontext, as a family: see `family_protocol.py`."""

from collections.abc import Sequence
from typing import Final

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.single_file import OriginalFormat
from imagefleet.worker.engine.families.flux1.configs import Configs
from imagefleet.worker.engine.families.flux1.model import Flux1
from imagefleet.worker.engine.families.flux1.parts import CLIP, T5, TRANSFORMER, VAE
from imagefleet.worker.engine.families.flux1.pipelines import PIPELINES
from imagefleet.worker.engine.families.flux1.single_file_keys import Flux1Format


class Flux1Family:
    """It is the family of the pipelines in `pipelines.py`."""

    name = Flux1.title
    pipelines: Sequence[str] = tuple(PIPELINES)
    networks: Sequence[str] = (CLIP, T5, TRANSFORMER, VAE)
    original_format: OriginalFormat | None = Flux1Format()

    def read(self, files: CheckpointFiles) -> Flux1:
        """Read the configs. The pipeline has no safety checker."""
        return Flux1(Configs.read(files))


FLUX1: Final = Flux1Family()

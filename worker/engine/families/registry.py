"""List the families of models, and find that of a checkpoint."""

from collections.abc import Mapping
from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.families.family_protocol import Family, FamilyModel
from imagefleet.worker.engine.families.flux1.family import FLUX1
from imagefleet.worker.engine.families.flux2_klein.family import FLUX2_KLEIN
from imagefleet.worker.engine.families.stable_diffusion.family import STABLE_DIFFUSION
from imagefleet.worker.engine.families.stable_diffusion_3.family import STABLE_DIFFUSION_3
from imagefleet.worker.engine.families.z_image.family import Z_IMAGE

FAMILIES: Final[tuple[Family, ...]] = (
    STABLE_DIFFUSION,
    Z_IMAGE,
    FLUX2_KLEIN,
    FLUX1,
    STABLE_DIFFUSION_3,
)
NETWORKS: Final = tuple(dict.fromkeys(name for family in FAMILIES for name in family.networks))
"""It has the folders of networks that this engine knows. model_index.json lists those of a
checkpoint."""


def family_of(files: CheckpointFiles) -> Family:
    """Return the family of a checkpoint, by the pipeline in its model_index.json.

    Raises:
        CheckpointError: no family has this pipeline.
    """
    name = str(files.read_json(INDEX).get("_class_name"))
    for family in FAMILIES:
        if name in family.pipelines:
            return family
    known = ", ".join(pipeline for family in FAMILIES for pipeline in family.pipelines)
    raise CheckpointError(f"{INDEX}: _class_name is {name!r}; this engine runs {known}")


def read_configs(files: CheckpointFiles) -> FamilyModel:
    """Read the configs of a checkpoint of any family.

    Raises:
        CheckpointError: a file is missing, unsupported, or contradicts another file.
    """
    return family_of(files).read(files)


def base_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Family, str] | None:
    """Return the family of a file in an original format, and the Hub id of the configs it needs.

    None: the file is of no known family. `shapes` has the shape of each tensor by its key.
    """
    for family in FAMILIES:
        known = family.original_format
        if known is not None and (base := known.base_model(shapes)) is not None:
            return family, base
    return None

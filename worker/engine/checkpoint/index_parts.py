"""Check the parts of a checkpoint that `model_index.json` lists, and their configs.

Input: the parsed JSON, and what a family reads. Output: the class of a part, or an error. This
module knows no family's names.
"""

from collections.abc import Mapping
from typing import Any

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import (
    FILES_BESIDE,
    INDEX,
    CheckpointFiles,
    has_part,
)


def require_part(
    index: Mapping[str, Any], part: str, library: str, classes: tuple[str, ...] = ()
) -> str:
    """Return the class of a part that must be there, and be one of `classes` if any.

    Raises:
        CheckpointError: The part is missing, or of another library or class.
    """
    pipeline = index["_class_name"]
    if not has_part(index, part):
        raise CheckpointError(
            f"{INDEX}: {part} is missing, which a {pipeline} needs; "
            "save the whole pipeline with diffusers"
        )
    entry = index[part]
    is_pair = isinstance(entry, list) and len(entry) == 2
    if not is_pair or entry[0] != library or (classes and entry[1] not in classes):
        supported = " or ".join(classes) or "a scheduler"
        raise CheckpointError(
            f"{INDEX}: {part} is {entry!r}; "
            f"this engine runs {supported} of the library {library!r} in a {pipeline}"
        )
    return str(entry[1])


def require_equal(*fields: tuple[str, object, object]) -> None:
    """Check values of configs against each other: the names of two fields, and their values.

    Raises:
        CheckpointError: Two values differ.
    """
    for names, one, other in fields:
        if one != other:
            raise CheckpointError(
                f"the configs of this checkpoint contradict each other: {names} must be "
                f"equal but are {one} and {other}; take all parts from one model"
            )


def refuse_files_beside(files: CheckpointFiles, part: str) -> None:
    """Raise CheckpointError for a file that transformers would read in the place of another."""
    for name, reason in FILES_BESIDE.items():
        if files.read_optional_json(file := f"{part}/{name}") is not None:
            raise CheckpointError(
                f"{file}: {reason}; remove the file, or apply it and save the part"
            )

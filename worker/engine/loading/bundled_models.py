"""Find the models that imagefleet's authors trained: one in its package, one in a wheel of its own.

Input: the model's name. Output: a folder in diffusers format. What producers install has only the
first one.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

import imagefleet.worker
from imagefleet.shared.errors import CheckpointError

BUNDLED: Final = ("shapes", "shapes-dit")


def bundled_folder(model: str) -> Path:
    """Return the folder of a model in `BUNDLED`.

    Raises:
        CheckpointError: its wheel is not installed.
    """
    if model == "shapes":
        return Path(imagefleet.worker.__file__).parent / "bundled" / model
    package = f"imagefleet_{model.replace('-', '_')}"
    found = find_spec(package)
    if found is None or found.origin is None:
        raise CheckpointError(
            f"model {model!r} is in a wheel of its own, imagefleet-{model}, which is not "
            f"installed; in a clone of the repository, run `pip install ./models/"
            f"{model.replace('-', '_')}`"
        )
    return Path(found.origin).parent

"""Check the keys by which a file in the original format says how its model was trained.

Input: the file and the scheduler of the configs. Output: an error if they do not fit. Such a marker
is no weight, and diffusers ignores it. Without a scheduler that fits the training the images would
be noise.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule
from imagefleet.worker.engine.schedulers.prediction import Prediction

_V_PREDICTION: Final = "v_pred"
_ZERO_SNR: Final = "ztsnr"
_EDM_BOUNDS: Final[Mapping[str, str]] = {
    "edm_vpred.sigma_min": "sigma_min",
    "edm_vpred.sigma_max": "sigma_max",
}
"""In a file of a v-prediction with the noise levels of EDM, each of these keys gives the value of a
field."""
MARKERS: Final = frozenset((_V_PREDICTION, _ZERO_SNR, *_EDM_BOUNDS))
_TOLERANCE: Final = 1e-2
"""A bound in half precision differs from the field by up to 1e-3 of it."""


def check_markers(file: Path, whole: TensorFiles, noise: NoiseSchedule) -> None:
    """Check that the scheduler fits the markers of the file.

    Args:
        file: The path, for errors.
        whole: All tensors of the file.
        noise: The schedule of the configs.

    Raises:
        CheckpointError: It does not fit. The error says which scheduler the configs need.
    """
    found = MARKERS & whole.shapes.keys()
    needed = {}
    if found - {_ZERO_SNR} and noise.prediction_type is not Prediction.V:
        needed["prediction_type"] = "v_prediction"
    if _ZERO_SNR in found and not noise.rescale_betas_zero_snr:
        needed["rescale_betas_zero_snr"] = "true"
    for key in sorted(found & _EDM_BOUNDS.keys()):
        bound = _number(file, whole, key)
        theirs = math.nan if noise.edm is None else getattr(noise.edm, _EDM_BOUNDS[key])
        if not math.isclose(theirs, bound, rel_tol=_TOLERANCE):
            needed[f"{_EDM_BOUNDS[key]} of an EDMEulerScheduler"] = f"{bound:g}"
    if needed:
        wanted = " and ".join(f"{field} = {value}" for field, value in needed.items())
        raise CheckpointError(
            f"{file} has {', '.join(sorted(found))}, so its model needs {wanted}, which the "
            "scheduler of its configs does not have; put configs with that in "
            f"scheduler/scheduler_config.json into {file.with_suffix('')}, in diffusers' layout "
            "without weights"
        )


def _number(file: Path, whole: TensorFiles, key: str) -> float:
    """Return the only number of a tensor."""
    tensor = whole.read_slice(key, tuple(slice(None) for _ in whole.shapes[key]))
    if tensor.size != 1:
        raise CheckpointError(
            f"{file}: {key} has {tensor.size} numbers, but it must have one; download it again"
        )
    return float(tensor.reshape(())[()])

"""Lower the programs of a model for TPUs that are not here, as a worker there would run them.

Goes in: configs, a shape and a mesh. Comes out: for each program a function that lowers it. Weights
are abstract.
"""

from typing import Any, Final

import ml_dtypes
import numpy as np

from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.program_compiler import Lower
from imagefleet.worker.engine.compile_ahead import AbstractModel
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.mesh import Placement

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
MAX_STEPS: Final = 100
"""The default of a worker's `max_num_inference_steps`."""


def lower_programs(
    configs: Configs,
    shape: Shape,
    placement: Placement,
    *,
    per_device_batch: int = 1,
    streams: bool = False,
    dtype: np.dtype[Any] = BFLOAT16,
) -> dict[str, Lower]:
    """Return for each program of a shape, or of a stream of it, the function that lowers it."""
    text_encoders = configs.text_encoders
    model = AbstractModel.of(
        configs,
        placement,
        ExecutableCache([], {}, placement.mesh.devices.flatten().tolist()),
        token_shape=(len(text_encoders), text_encoders[0].max_position_embeddings),
        per_device_batch=per_device_batch,
        dtype=dtype,
        max_steps=MAX_STEPS,
        streams=streams,
    )
    return model.compiler.lowerings(shape, model.rgb_factors)

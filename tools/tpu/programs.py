"""Lower the programs of a model for TPUs that are not here, as a worker there would run them.

Input: a model, a shape and a mesh. Output: for each program a function that lowers it. Weights are
abstract.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import ml_dtypes
import numpy as np

from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.program_compiler import Lower
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.compile_ahead import AbstractModel
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
from tools.tpu.lora_file import write_lora
from tools.tpu.models import token_lengths

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
MAX_STEPS: Final = 100
"""The default of a worker's `max_num_inference_steps`."""


def lower_programs(
    source: FamilyModel,
    shape: Shape,
    placement: Placement,
    *,
    per_device_batch: int = 1,
    streams: bool = False,
    loras: int = 0,
    prompt_chunks: int = 0,
    host_text_encoder: bool = False,
    dtype: np.dtype[Any] = BFLOAT16,
) -> dict[str, Lower]:
    """Return for each program of a shape, or of a stream of it, the function that lowers it.

    Args:
        loras: How many LoRA jobs may use, each of `lora_file.RANK` for the UNet's attention layers.
        prompt_chunks: The most chunks of a prompt with weights.
        host_text_encoder: Whether the host encodes texts.
    """
    with TemporaryDirectory(prefix="lora-") as folder:
        file = Path(folder) / "lora.safetensors"
        if loras:
            write_lora(file, source)
        model = AbstractModel.of(
            source,
            placement,
            ExecutableCache([], {}, placement.mesh.devices.flatten().tolist()),
            token_lengths=token_lengths(source),
            per_device_batch=per_device_batch,
            dtype=dtype,
            max_steps=MAX_STEPS,
            options=ModelOptions(
                streams=streams,
                job_loras=tuple(LoraOption(name=f"lora{n}", path=str(file)) for n in range(loras)),
                prompt_chunks=prompt_chunks,
                host_text_encoder=host_text_encoder,
            ),
        )
    return model.compiler.lowerings(shape, model.rgb_factors)

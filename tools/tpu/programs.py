"""Lower the programs of a model for TPUs that are not here, as a worker there would run them.

Goes in: configs, a shape and a mesh. Comes out: for each program a function that lowers it. Weights
are abstract.
"""

from dataclasses import dataclass
from typing import Any, Final, cast

import jax
import ml_dtypes
import numpy as np

from imagefleet.worker.engine.batch_inputs import BatchInputBuilder
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.program_compiler import Lower, ProgramCompiler
from imagefleet.worker.engine.interface import ModelInfo, Shape
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.networks import abstract_networks, abstract_weights, assemble
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.tokenizer import PromptTokenizer

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
MAX_STEPS: Final = 100
"""The default of a worker's `max_num_inference_steps`."""


@dataclass(frozen=True)
class _TokenShape:
    """The only property of a tokenizer that programs depend on."""

    shape: tuple[int, int]


def lower_programs(
    configs: Configs,
    shape: Shape,
    placement: Placement,
    *,
    per_device_batch: int = 1,
    dtype: np.dtype[Any] = BFLOAT16,
) -> dict[str, Lower]:
    """Return for each program of a shape the function that lowers it."""
    networks = abstract_networks(configs)
    parameters = abstract_weights(networks, placement, dtype)
    programs, weights = assemble(configs, networks, parameters, dtype)
    info = ModelInfo(
        name="",
        digest="",
        shapes=(shape,),
        schedulers=registry.available(configs.noise),
        default_scheduler="",
        default_num_inference_steps=1,
        default_guidance_scale=1.0,
        max_num_inference_steps=MAX_STEPS,
        versions={},
    )
    tokens = _TokenShape(
        (len(configs.text_encoders), configs.text_encoders[0].max_position_embeddings)
    )
    builder = BatchInputBuilder(
        placement.data * per_device_batch,
        info,
        programs,
        cast(PromptTokenizer, tokens),
        configs.noise,
    )
    compiler = ProgramCompiler(
        programs,
        weights,
        builder,
        placement,
        ExecutableCache([], {}, placement.mesh.devices.flatten().tolist()),
    )
    rgb_factors = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        (programs.latent_channels + 1, 3), np.float32, sharding=placement.replicated
    )
    return compiler.lowerings(shape, rgb_factors)

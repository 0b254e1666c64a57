"""Build an engine from a checkpoint folder.

Input: a folder in diffusers format. Output: a `DiffusionEngine` whose weights are on the devices
and whose programs are not compiled yet. Every fault of a checkpoint is reported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from flax import nnx

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors, job_loras
from imagefleet.worker.engine.checkpoint.lora import applied_loras, digest_with, read_loras
from imagefleet.worker.engine.checkpoint.textual_inversion import (
    ExtendedEmbedding,
    VectorsById,
)
from imagefleet.worker.engine.checkpoint.weights import (
    WeightMapping,
    require_complete,
    weight_entries,
)
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.contract.interface import ModelInfo, Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.memory import MemoryNeed, memory_need
from imagefleet.worker.engine.loading.assemble_networks import (
    abstract_networks,
    assemble,
    place_factors,
)
from imagefleet.worker.engine.loading.find_checkpoint import ModelIdentity
from imagefleet.worker.engine.loading.read_model import ModelSetup, choose_dtype, limit_steps
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import require_memory
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers import registry

WITH_LORA: Final = ("text_encoder", "text_encoder_2", "unet")
"""Networks to which a LoRA may be added."""


def load_stable_diffusion(
    setup: ModelSetup,
    *,
    identity: ModelIdentity,
    placement: Placement,
    per_device_batch: int,
    dtype: str | None,
    max_num_inference_steps: int,
    options: ModelOptions,
    executable_cache: ExecutableCache,
) -> DiffusionEngine:
    """Load the weights of a model and place them on the devices of `placement`.

    `load_engine` explains the settings.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: the model does not support the dtype, or there is too little memory.
    """
    files, configs = setup.files, setup.configs
    programs, weights = load_networks(
        files,
        configs,
        placement,
        choose_dtype(dtype, placement.platform),
        setup.shapes,
        per_device_batch,
        options,
        setup.vectors,
    )
    max_steps = limit_steps(max_num_inference_steps, configs)
    loras, loaded = applied_loras(options.loras), tuple(each.loaded for each in setup.inversions)
    info = ModelInfo(
        name=identity.name,
        source=identity.source,
        digest=digest_with(files.digest(), loras, loaded),
        loras=loras,
        textual_inversions=loaded,
        job_loras=job_loras(options.job_loras),
        shapes=setup.shapes,
        schedulers=registry.available(configs.noise),
        default_scheduler=setup.default_scheduler,
        default_num_inference_steps=min(setup.default_steps, max_steps),
        default_guidance_scale=setup.default_guidance,
        max_num_inference_steps=max_steps,
        max_clip_skip=configs.max_clip_skip,
        rescales_guidance=configs.rescales_guidance,
        prompt_chunks=options.prompt_chunks,
        image_use=configs.family.image_use,
        latents=configs.latent_format,
        versions={library: version(library) for library in ("jax", "jaxlib", "flax")},
    )
    return DiffusionEngine(
        info=info,
        programs=programs,
        weights=weights,
        tokenizer=setup.tokenizer,
        noise=configs.noise,
        placement=placement,
        per_device_batch=per_device_batch,
        executable_cache=executable_cache,
    )


def load_networks(
    files: CheckpointFiles,
    configs: Configs,
    placement: Placement,
    dtype: np.dtype[Any],
    shapes: Sequence[Shape] = (),
    per_device_batch: int = 1,
    options: ModelOptions | None = None,
    vectors: Mapping[str, VectorsById] | None = None,
) -> tuple[DiffusionPrograms, Weights]:
    """Load the networks: their structure as programs, and their weights on the devices.

    Args:
        files: The files of the checkpoint.
        configs: Read from them.
        placement: The devices.
        dtype: To which the weights are cast.
        shapes: The shapes for whose batches there must be memory beside the weights.
        per_device_batch: Images that one copy of the weights denoises at a time.
        options: The LoRAs to merge into the weights, those that jobs may use, and whether the
            devices will run streams. None: no LoRAs, and whole batches.
        vectors: From `add_textual_inversions`. None: there are none.

    Raises:
        CheckpointError: weights are missing, unused, misshapen or not finite; a LoRA does not fit.
        TooLittleMemory: the weights and a batch do not fit.
    """
    options = options or ModelOptions()
    added = {name: each for name, each in (vectors or {}).items() if each}
    configs = configs.with_tokens(added)
    networks = abstract_networks(configs)
    entries = {name: weight_entries(name, network) for name, network in networks.items()}
    keys = {name: [each.key for each in listed] for name, listed in entries.items()}
    opened = files.open_weights(tuple(networks), keys)
    opened |= {name: ExtendedEmbedding(opened[name], each) for name, each in added.items()}
    mappings = {
        name: WeightMapping(name, network, opened[name]) for name, network in networks.items()
    }
    require_complete(mappings.values())
    trained = {name: each.shapes for name, each in mappings.items() if name in WITH_LORA}
    factors = read_loras(options.loras, trained)
    job_factors = JobLoraFactors(options.job_loras, trained)
    need = memory_need_with_loras(
        configs, networks, shapes, placement, dtype, per_device_batch, options, job_factors
    )
    require_memory(need, placement)
    parameters = {
        name: mapping.load(dtype, placement, factors.get(name))
        for name, mapping in mappings.items()
    }
    for name in trained:
        place = partial(place_factors, placement=placement, dtype=dtype)
        job_factors.add_to(name, parameters[name], entries[name], place)
    return assemble(configs, networks, parameters, dtype)


def memory_need_with_loras(
    configs: Configs,
    networks: Mapping[str, nnx.Module],
    shapes: Sequence[Shape],
    placement: Placement,
    dtype: np.dtype[Any],
    per_device_batch: int,
    options: ModelOptions,
    job_factors: JobLoraFactors,
) -> MemoryNeed:
    """Return what a device needs for a model, the LoRA of its jobs and a batch."""
    need = memory_need(
        configs,
        networks,
        shapes,
        model=placement.model,
        per_device_batch=per_device_batch,
        dtype=dtype,
        platform=placement.platform,
        device_kind=placement.device_kind,
        streams=options.streams,
        prompt_chunks=options.prompt_chunks,
    )
    return replace(need, weights=need.weights + job_factors.size * dtype.itemsize)


def require_fit(
    setup: ModelSetup,
    placement: Placement,
    *,
    dtype: str | None,
    per_device_batch: int,
    options: ModelOptions,
) -> MemoryNeed:
    """Check LoRA files and memory as the load of a model does, without its weights.

    Returns:
        What a device needs.

    Raises:
        CheckpointError: a LoRA cannot be read, or does not fit the model.
        TooLittleMemory: the weights and a batch do not fit.
    """
    configs = setup.configs.with_tokens(setup.vectors)
    networks = abstract_networks(configs)
    trained = trained_shapes(networks)
    read_loras(options.loras, trained)
    need = memory_need_with_loras(
        configs,
        networks,
        setup.shapes,
        placement,
        choose_dtype(dtype, placement.platform),
        per_device_batch,
        options,
        JobLoraFactors(options.job_loras, trained),
    )
    require_memory(need, placement)
    return need


def trained_shapes(networks: Mapping[str, nnx.Module]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return by network and key the shapes of the weights to which a LoRA may be added."""
    return {
        name: {entry.key: entry.stored_shapes[0] for entry in weight_entries(name, networks[name])}
        for name in networks
        if name in WITH_LORA
    }

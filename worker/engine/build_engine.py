"""Build an engine from a checkpoint folder.

Input: a folder in diffusers format. Output: a `DiffusionEngine` whose weights are on the devices
and whose programs are not compiled yet. Every fault of a checkpoint is reported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.find_checkpoint import ModelIdentity, open_checkpoint
from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors, job_loras
from imagefleet.worker.engine.checkpoint.lora import applied_loras, digest_with, read_loras
from imagefleet.worker.engine.checkpoint.pipeline_index import Family
from imagefleet.worker.engine.checkpoint.textual_inversion import (
    ExtendedEmbedding,
    Floats,
    TextualInversion,
    VectorsById,
    read_textual_inversions,
)
from imagefleet.worker.engine.checkpoint.weights import (
    WeightMapping,
    require_complete,
    weight_entries,
)
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.diffusion_programs import DiffusionPrograms
from imagefleet.worker.engine.interface import ModelInfo, Shape
from imagefleet.worker.engine.memory_check import require_memory
from imagefleet.worker.engine.memory_need import memory_need
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.model_options import ModelOptions
from imagefleet.worker.engine.networks import abstract_networks, assemble, place_factors
from imagefleet.worker.engine.program_arrays import Weights
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.tokenizer import ClipTokenizer, PromptTokenizer

WITH_LORA: Final = ("text_encoder", "text_encoder_2", "unet")
"""Networks to which a LoRA may be added."""
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def load_stable_diffusion(
    folder: Path,
    *,
    identity: ModelIdentity,
    shapes: Sequence[Shape],
    placement: Placement,
    per_device_batch: int,
    dtype: str | None,
    max_num_inference_steps: int,
    options: ModelOptions,
    executable_cache: ExecutableCache,
) -> DiffusionEngine:
    """Load the model in `folder` and place it on the devices of `placement`.

    `load_engine` explains the settings.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: the model does not support a shape or dtype, or there is too little
            memory.
    """
    files = open_checkpoint(folder)
    configs = Configs.read(files, safety_checker=options.safety_checker)
    shapes = choose_shapes(shapes, configs)
    numpy_dtype = choose_dtype(dtype, placement.platform)
    tokenizer = load_tokenizer(files, configs)
    inversions = read_textual_inversions(options.textual_inversions, configs)
    vectors = add_textual_inversions(inversions, tokenizer, configs)
    steps, guidance = default_parameters(files, configs.family)
    default_scheduler = registry.default(configs.noise, options.scheduler)
    programs, weights = load_networks(
        files, configs, placement, numpy_dtype, shapes, per_device_batch, options, vectors
    )
    max_steps = limit_steps(max_num_inference_steps, configs)
    loras, loaded = applied_loras(options.loras), tuple(each.loaded for each in inversions)
    info = ModelInfo(
        name=identity.name,
        source=identity.source,
        digest=digest_with(files.digest(), loras, loaded),
        loras=loras,
        textual_inversions=loaded,
        job_loras=job_loras(options.job_loras),
        shapes=shapes,
        schedulers=registry.available(configs.noise),
        default_scheduler=default_scheduler,
        default_num_inference_steps=min(steps, max_steps),
        default_guidance_scale=guidance,
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
        tokenizer=tokenizer,
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
    trained = {name: each.shapes for name, each in mappings.items() if name in WITH_LORA}
    factors = read_loras(options.loras, trained)
    job_factors = JobLoraFactors(options.job_loras, trained)
    need = replace(need, weights=need.weights + job_factors.size * dtype.itemsize)
    require_memory(need, placement)
    parameters = {
        name: mapping.load(dtype, placement, factors.get(name))
        for name, mapping in mappings.items()
    }
    for name in trained:
        place = partial(place_factors, placement=placement, dtype=dtype)
        job_factors.add_to(name, parameters[name], entries[name], place)
    return assemble(configs, networks, parameters, dtype)


def load_tokenizer(files: CheckpointFiles, configs: Configs) -> PromptTokenizer:
    """Load the tokenizers of all text encoders.

    Raises:
        CheckpointError: files are missing, are of another kind of tokenizer, or do not fit their
            text encoders.
    """
    tokenizers = []
    for name, encoder, config in zip(
        configs.family.tokenizers, configs.family.text_encoders, configs.text_encoders, strict=True
    ):
        tokenizer = ClipTokenizer(files, name)
        tokenizer.require_fits(encoder, config.max_position_embeddings, config.vocab_size)
        tokenizers.append(tokenizer)
    return PromptTokenizer(tokenizers)


def add_textual_inversions(
    inversions: Sequence[TextualInversion], tokenizer: PromptTokenizer, configs: Configs
) -> dict[str, dict[int, Floats]]:
    """Add the tokens of textual inversions to a tokenizer.

    Returns:
        By text encoder: the vectors, by the ids of their tokens.

    Raises:
        CheckpointError: a vocabulary has such a token already.
    """
    names = configs.family.text_encoders
    vectors: dict[str, dict[int, Floats]] = {name: {} for name in names}
    for inversion in inversions:
        for name, each in zip(names, tokenizer.tokenizers, strict=True):
            rows = inversion.vectors[name]
            ids = each.add_vectors(inversion.loaded.name, len(rows))
            vectors[name] |= zip(ids, rows, strict=True)
    return vectors


def default_parameters(files: CheckpointFiles, family: Family) -> tuple[int, float]:
    """Return steps and guidance from the checkpoint's `imagefleet.json`, or diffusers' defaults.

    Raises:
        CheckpointError: one of them is not a number that a job may have.
    """
    fields: Mapping[str, Any] = files.read_optional_json("imagefleet.json") or {}
    steps = fields.get("num_inference_steps", family.num_inference_steps)
    guidance = fields.get("guidance_scale", family.guidance_scale)
    if not isinstance(steps, int) or steps < 1:
        raise CheckpointError(
            f"imagefleet.json: num_inference_steps={steps!r} is not a whole number above 0"
        )
    if not isinstance(guidance, int | float) or guidance < 0:
        raise CheckpointError(
            f"imagefleet.json: guidance_scale={guidance!r} is not a number of 0 or more"
        )
    return steps, float(guidance)


def limit_steps(max_num_inference_steps: int, configs: Configs) -> int:
    """Return the most steps that a job may ask for."""
    return min(max_num_inference_steps, configs.noise.num_train_timesteps)


def choose_shapes(shapes: Sequence[Shape], configs: Configs) -> tuple[Shape, ...]:
    """Return the declared shapes, or the model's native one if there are none.

    The networks must be able to halve them as often as they do.

    Raises:
        ConfigurationError: a side is not a multiple of what the networks need.
    """
    shapes, multiple = tuple(shapes) or (configs.native_shape,), configs.shape_multiple
    for shape in shapes:
        sides = (shape.height, shape.width)
        if any(side % multiple or side < multiple for side in sides):
            raise ConfigurationError(
                f"IMAGEFLEET_SHAPES: {shape}: height and width must be multiples of {multiple} "
                f"(autoencoder {configs.vae.downsampling} x UNet {configs.unet.downsampling})"
            )
    return shapes


def choose_dtype(name: str | None, platform: str) -> np.dtype[Any]:
    """Return the dtype of that name. None: that of the platform.

    Raises:
        ConfigurationError: there is no such dtype.
    """
    name = name or ("float32" if platform == "cpu" else "bfloat16")
    if name not in _DTYPES:
        raise ConfigurationError(
            f"IMAGEFLEET_DTYPE={name!r} is unknown; choose {' or '.join(_DTYPES)}"
        )
    return _DTYPES[name]

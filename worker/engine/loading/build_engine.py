"""Build an engine from a checkpoint folder.

Input: a folder in diffusers format. Output: a `DiffusionEngine` whose weights are on the devices
and whose programs are not compiled yet. Every fault of a checkpoint is reported here.
"""

from functools import partial
from importlib.metadata import version

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors, job_loras
from imagefleet.worker.engine.checkpoint.lora import applied_loras, digest_with, read_loras
from imagefleet.worker.engine.checkpoint.weights import (
    WeightMapping,
    require_complete,
    weight_entries,
)
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.fingerprint import texts_fingerprint
from imagefleet.worker.engine.compile.start_log import StartLog
from imagefleet.worker.engine.contract.interface import ModelInfo, Shape
from imagefleet.worker.engine.contract.text_store import TextStore
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.abstract_weights import place_factors, trained_shapes
from imagefleet.worker.engine.loading.find_checkpoint import ModelIdentity
from imagefleet.worker.engine.loading.memory_need import (
    memory_need,
    need_without_weights,
)
from imagefleet.worker.engine.loading.read_model import ModelSetup, choose_dtype
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import MemoryNeed, Workload, require_memory
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.runtime.host_text_encoder import HostTextEncoder
from imagefleet.worker.engine.runtime.text_cache import TextCache
from imagefleet.worker.engine.sampling.arrays import Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms


def build_engine(
    setup: ModelSetup,
    *,
    identity: ModelIdentity,
    placement: Placement,
    per_device_batch: int,
    dtype: str | None,
    max_num_inference_steps: int,
    options: ModelOptions,
    executable_cache: ExecutableCache,
    text_store: TextStore | None = None,
) -> DiffusionEngine:
    """Load the weights of a model and place them on the devices of `placement`.

    `load_engine` explains the settings. Hosts share encoded texts in `text_store`.

    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: the model does not support the dtype, or there is too little memory.
    """
    files, model = setup.files, setup.model
    numpy_dtype = choose_dtype(dtype, placement.platform)
    workload = Workload.of(placement, numpy_dtype, per_device_batch, options)
    with executable_cache.start_log.stage(f"reading the weights of {identity.name}"):
        programs, weights = load_networks(files, model, placement, workload, setup.shapes, options)
        digest = files.digest()
    on_host = _host_encoder(setup, programs, weights, options, executable_cache.start_log)
    if on_host is not None:
        weights = weights.without_text_encoder()
    max_steps = setup.limit_steps(max_num_inference_steps)
    loras, inversions = applied_loras(options.loras), model.inversions
    info = ModelInfo(
        name=identity.name,
        source=identity.source,
        digest=digest_with(digest, loras, inversions, int8_weights=options.int8_weights),
        model_license=setup.model_license,
        loras=loras,
        textual_inversions=inversions,
        job_loras=job_loras(options.job_loras),
        controlnets=model.controlnets,
        shapes=setup.shapes,
        schedulers=setup.schedulers(max_steps),
        default_scheduler=setup.default_scheduler,
        default_num_inference_steps=min(setup.default_steps, max_steps),
        default_guidance_scale=setup.default_guidance,
        unguided_scale=model.unguided_scale,
        max_num_inference_steps=max_steps,
        max_clip_skip=model.max_clip_skip,
        rescales_guidance=model.rescales_guidance,
        limits_guidance=programs.denoiser.limits_guidance,
        true_guidance=programs.denoiser.true_guidance,
        prompt_chunks=options.prompt_chunks,
        image_use=model.image_use,
        latents=model.latent_format,
        versions={library: version(library) for library in ("jax", "jaxlib", "flax")},
    )
    on_cpu = on_host is not None or placement.platform == "cpu"
    encoder = f"{info.digest} {numpy_dtype} streams={options.streams}"
    scope = texts_fingerprint(executable_cache.environment, encoder, on_cpu=on_cpu)
    return DiffusionEngine(
        info=info,
        programs=programs,
        weights=weights,
        tokenizer=setup.tokenizer,
        noise_schedule=model.noise_schedule,
        placement=placement,
        per_device_batch=per_device_batch,
        executable_cache=executable_cache,
        texts=TextCache(options.text_cache_bytes, on_host, text_store, scope),
    )


def _host_encoder(
    setup: ModelSetup,
    programs: DiffusionPrograms,
    weights: Weights,
    options: ModelOptions,
    start_log: StartLog,
) -> HostTextEncoder | None:
    """Return the text encoder of the host, if the model has one and the host is to run it."""
    encoding = programs.denoiser.text_encoding
    if encoding is None or not options.host_text_encoder:
        return None
    with start_log.stage("compiling the text encoder for the host"):
        length, *_ = setup.tokenizer.lengths
        return HostTextEncoder(encoding, weights, length, Placement.on_host())


def load_networks(
    files: CheckpointFiles,
    model: FamilyModel,
    placement: Placement,
    workload: Workload,
    shapes: tuple[Shape, ...] = (),
    options: ModelOptions | None = None,
) -> tuple[DiffusionPrograms, Weights]:
    """Load the networks: their structure as programs, and their weights on the devices.

    Args:
        files: The files of the checkpoint.
        model: Read from them.
        placement: The devices.
        workload: What they are used for. The weights are cast to its dtype.
        shapes: The shapes for whose batches there must be memory beside the weights.
        options: The LoRAs to merge into the weights, and those that jobs may use. None: no LoRAs.

    Raises:
        CheckpointError: weights are missing, unused, misshapen or not finite; a LoRA does not fit.
        TooLittleMemory: the weights and a batch do not fit.
    """
    options, dtype, names = options or ModelOptions(), workload.dtype, model.lora_names
    networks = model.networks()
    entries = {name: weight_entries(network) for name, network in networks.items()}
    keys = {name: [each.key for each in listed] for name, listed in entries.items()}
    opened = model.open_weights(files, keys)
    mappings = {
        name: WeightMapping(name, network, opened[name]) for name, network in networks.items()
    }
    require_complete(mappings.values())
    trained = {name: each.shapes for name, each in mappings.items() if name in names.networks}
    factors = read_loras(options.loras, trained, names)
    job_factors = JobLoraFactors(options.job_loras, trained, names)
    require_memory(memory_need(model, networks, shapes, workload, job_factors), placement)
    of_texts = Placement.on_host() if options.host_text_encoder else placement
    parameters = {
        name: mapping.load(
            dtype, of_texts if name in model.text_networks else placement, factors.get(name)
        )
        for name, mapping in mappings.items()
    }
    for name in trained:
        place = partial(place_factors, placement=placement, dtype=dtype)
        job_factors.add_to(name, parameters[name], entries[name], place)
    return model.assemble(networks, parameters, dtype)


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
    networks, names = setup.model.networks(), setup.model.lora_names
    read_loras(options.loras, trained_shapes(networks, names), names)
    numpy_dtype = choose_dtype(dtype, placement.platform)
    workload = Workload.of(placement, numpy_dtype, per_device_batch, options)
    need = need_without_weights(setup, networks, workload, options)
    require_memory(need, placement)
    return need

"""Load the model that the settings name, or check the settings against it.

Input: settings. Output: an engine that is not warm, or what is known of the model before that.
"""

from typing import TYPE_CHECKING

from imagefleet.worker.engine.contract.interface import Engine, Shape
from imagefleet.worker.engine.fake.fake_engine import is_fake
from imagefleet.worker.engine.loading.load_engine import SharedStores, load_engine
from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.settings.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from imagefleet.worker.engine.loading.read_model import ModelSetup


def load_model(settings: WorkerSettings, shared: SharedStores | None = None) -> Engine:
    """Load the engine.

    Args:
        shared: Where hosts share executables and encoded texts. None: nowhere.

    Raises:
        CheckpointError: the model cannot be found, read or run.
        ConfigurationError: this host or this model does not support a setting.
    """
    return load_engine(
        settings.model,
        shapes=settings.declared_shapes(),
        per_device_batch=settings.per_device_batch,
        mesh=settings.mesh,
        devices=settings.devices,
        dtype=settings.dtype,
        cache_dir=settings.cache_dir,
        shared=shared,
        max_num_inference_steps=settings.max_num_inference_steps,
        options=model_options(settings),
    )


def read_model(settings: WorkerSettings) -> "ModelSetup | None":
    """Read the configs of the model; check shapes, scheduler and textual inversions against them.

    It reads no weights and uses no devices. Of a model from the Hub only configs and tokenizers are
    downloaded.

    Returns:
        What is known of the model; None if it is a fake one.

    Raises:
        CheckpointError: the model cannot be found, or its configs or tokenizers cannot be used.
        ConfigurationError: the model does not support a setting.
    """
    if is_fake(settings.model):
        load_model(settings)
        return None
    from imagefleet.worker.engine.loading.find_checkpoint import find_checkpoint
    from imagefleet.worker.engine.loading.read_model import ModelSetup

    folder = find_checkpoint(settings.model, with_weights=False)
    return ModelSetup.read(folder, settings.declared_shapes() or (), model_options(settings))


def announced_model(settings: WorkerSettings) -> tuple[str, tuple[Shape, ...]]:
    """Return the name and the shapes that a worker with these settings announces.

    Raises:
        CheckpointError, ConfigurationError: as of `read_model`.
    """
    setup = read_model(settings)
    if setup is None:
        info = load_model(settings).info
        return info.name, info.shapes
    from imagefleet.worker.engine.loading.find_checkpoint import ModelIdentity, find_checkpoint

    folder = find_checkpoint(settings.model, with_weights=False)
    return ModelIdentity.of(settings.model, folder).name, setup.shapes


def model_options(settings: WorkerSettings) -> ModelOptions:
    """Return what the settings choose beside the checkpoint."""
    return ModelOptions(
        scheduler=settings.scheduler,
        safety_checker=settings.safety_checker,
        text_encoder_3=settings.text_encoder_3,
        loras=LoraOption.parse_all(settings.lora),
        job_loras=LoraOption.parse_job_loras(settings.job_lora),
        control_nets=ControlNetOption.parse_all(settings.controlnet),
        textual_inversions=TextualInversionOption.parse_all(settings.textual_inversion),
        prompt_chunks=settings.prompt_chunks,
        model_license=settings.model_license,
        int8_weights=settings.int8_weights,
        host_text_encoder=settings.host_text_encoder,
        text_cache_bytes=settings.text_cache_bytes,
        streams=settings.batching == "continuous",
    )

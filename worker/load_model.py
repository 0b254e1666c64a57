"""Load the model that the settings name. Input: settings. Output: an engine that is not warm."""

from imagefleet.worker.engine.interface import Engine
from imagefleet.worker.engine.load_engine import SharedExecutables, load_engine
from imagefleet.worker.engine.model_options import ModelOptions
from imagefleet.worker.settings import WorkerSettings


def load_model(
    settings: WorkerSettings, shared_executables: SharedExecutables | None = None
) -> Engine:
    """Load the engine.

    Args:
        shared_executables: Where hosts share executables. None: nowhere.

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
        shared_executables=shared_executables,
        max_num_inference_steps=settings.max_num_inference_steps,
        options=ModelOptions(
            scheduler=settings.scheduler,
            safety_checker=settings.safety_checker,
            loras=settings.merged_loras(),
            job_loras=settings.job_loras(),
            textual_inversions=settings.textual_inversions(),
            prompt_chunks=settings.prompt_chunks,
            streams=settings.batching == "continuous",
        ),
    )

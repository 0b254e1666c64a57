"""Read what a model is without its weights, and check the settings of a worker against it.

Input: the configs and tokenizers of a checkpoint, the settings, the files of textual inversions.
Output: a `ModelSetup`, or an error that names what is wrong. It uses no devices.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import ml_dtypes
import numpy as np

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.model_license import read_license
from imagefleet.worker.engine.checkpoint.single_file import is_single_file
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.families.registry import family_of, read_configs
from imagefleet.worker.engine.loading.find_checkpoint import open_checkpoint
from imagefleet.worker.engine.options.model_options import TEXT_ENCODER_3, ModelOptions
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.schedulers.registry import Schedule
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer

log = logging.getLogger(__name__)

_DEFAULTS_FILE: Final = "imagefleet.json"
"""It has what a model's author recommends, and what no file of diffusers says."""
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """It has what is known of a model before its weights are read."""

    files: CheckpointFiles
    model: FamilyModel
    """It includes the textual inversions."""
    shapes: tuple[Shape, ...]
    """They are the declared shapes, or the native one."""
    tokenizer: PromptTokenizer
    """It includes the tokens of the textual inversions."""
    default_steps: int
    default_guidance: float
    default_scheduler: str
    model_license: str | None
    """It is what the settings say, or else the model's card. None means that neither names one."""

    @classmethod
    def read(cls, folder: Path, shapes: Sequence[Shape], options: ModelOptions) -> Self:
        """Read the checkpoint that `find_checkpoint` found, and check the settings against it.

        Raises:
            CheckpointError: the checkpoint, or a textual inversion, cannot be used.
            ConfigurationError: the model does not support a shape, the scheduler, or another
                option.
        """
        files = open_checkpoint(folder, options.left_out)
        model = read_supported(files, options)
        shapes = choose_shapes(shapes or (native_shape(files, model),), model)
        tokenizer = model.load_tokenizer(files)
        model = model.with_textual_inversions(options.textual_inversions, tokenizer)
        model = model.with_control_nets(options.control_nets)
        steps, guidance = default_parameters(files, model)
        noise = model.noise_schedule(shapes[0])
        return cls(
            files=files,
            model=model,
            shapes=shapes,
            tokenizer=tokenizer,
            default_steps=steps,
            default_guidance=guidance,
            default_scheduler=registry.default(noise, options.scheduler),
            model_license=options.model_license or _license_of(folder),
        )

    def schedulers(self, max_steps: int) -> tuple[str, ...]:
        """Return the schedulers that can run the model, in each of its shapes.

        One that cannot make its tables is left out, and the log says why.

        Raises:
            CheckpointError: that is the default scheduler.
        """
        schedules = self._schedules()
        offered = [registry.available(schedule) for schedule in schedules]
        usable = []
        for name in offered[0]:
            if not all(name in each for each in offered):
                continue
            counts = (max_steps,) if name == self.default_scheduler else (1, 2, 3, 8, max_steps)
            steps = {min(count, max_steps) for count in counts}
            faults = (registry.fault_of(name, schedule, steps) for schedule in schedules)
            if (fault := next(filter(None, faults), None)) is None:
                usable.append(name)
            elif name == self.default_scheduler:
                raise CheckpointError(
                    f"scheduler/scheduler_config.json: {name} cannot run with it: {fault}; set "
                    "IMAGEFLEET_SCHEDULER to choose another on purpose"
                )
            else:
                log.warning("the scheduler %s is not offered: %s", name, fault)
        return tuple(usable)

    def limit_steps(self, max_num_inference_steps: int) -> int:
        """Return the most steps that a job may ask for."""
        trained = (schedule.num_train_timesteps for schedule in self._schedules())
        return min(max_num_inference_steps, *trained)

    def _schedules(self) -> list[Schedule]:
        """Return the noise schedules of the shapes. No two of them are equal."""
        schedules: list[Schedule] = []
        for shape in self.shapes:
            if (schedule := self.model.noise_schedule(shape)) not in schedules:
                schedules.append(schedule)
        return schedules


def _license_of(checkpoint: Path) -> str | None:
    """Return the licence that the card of a checkpoint states. A single file has none: the configs
    beside it are those of another model."""
    return None if is_single_file(checkpoint) else read_license(checkpoint)


def default_parameters(files: CheckpointFiles, model: FamilyModel) -> tuple[int, float]:
    """Return steps and guidance from the checkpoint's `imagefleet.json`, or diffusers' defaults.

    Raises:
        CheckpointError: one of them is not a number that a job may have.
    """
    fields: Mapping[str, Any] = files.read_optional_json(_DEFAULTS_FILE) or {}
    steps = fields.get("num_inference_steps", model.default_steps)
    guidance = fields.get("guidance_scale", model.default_guidance)
    if not isinstance(steps, int) or steps < 1:
        raise CheckpointError(
            f"{_DEFAULTS_FILE}: num_inference_steps={steps!r} is not a whole number above 0"
        )
    if not isinstance(guidance, int | float) or guidance < 0:
        raise CheckpointError(
            f"{_DEFAULTS_FILE}: guidance_scale={guidance!r} is not a number of 0 or more"
        )
    return steps, float(guidance)


def native_shape(files: CheckpointFiles, model: FamilyModel) -> Shape:
    """Return the size of images that `imagefleet.json` says, or else diffusers' default.

    Raises:
        CheckpointError: it is not a size that the model can have.
    """
    fields: Mapping[str, Any] = files.read_optional_json(_DEFAULTS_FILE) or {}
    multiple = model.shape_multiple
    given = {name: fields[name] for name in ("height", "width") if name in fields}
    for name, side in given.items():
        if not isinstance(side, int) or side < multiple or side % multiple:
            raise CheckpointError(
                f"{_DEFAULTS_FILE}: {name}={side!r} is not a multiple of {multiple}"
            )
    return replace(model.native_shape, **given)


def read_supported(files: CheckpointFiles, options: ModelOptions) -> FamilyModel:
    """Read the configs of a checkpoint, as the options ask for them. `files` leave out the parts
    that the options leave out.

    Raises:
        CheckpointError: the configs cannot be used.
        ConfigurationError: models of its family read no weights in prompts, have no weights of 8
            bits, no text encoder that the host may have, or none that may be left out.
    """
    model, family = read_configs(files), family_of(files)
    if options.prompt_chunks and not model.weighs_prompts:
        raise ConfigurationError(
            f"IMAGEFLEET_PROMPT_CHUNKS={options.prompt_chunks}: models of {family.name} read no "
            "weights in prompts; set it to 0"
        )
    if options.host_text_encoder and not model.text_networks:
        raise ConfigurationError(
            f"IMAGEFLEET_HOST_TEXT_ENCODER: models of {family.name} encode prompts on the devices; "
            "set it to false"
        )
    if not options.text_encoder_3 and TEXT_ENCODER_3 not in family.networks:
        raise ConfigurationError(
            f"IMAGEFLEET_TEXT_ENCODER_3=false: models of {family.name} have no {TEXT_ENCODER_3}; "
            "set it to true"
        )
    return model.with_int8_weights() if options.int8_weights else model


def choose_shapes(shapes: Sequence[Shape], model: FamilyModel) -> tuple[Shape, ...]:
    """Return the declared shapes.

    Each side must be divisible by 2 as often as the networks halve it.

    Raises:
        ConfigurationError: a side is not a multiple of what the networks need, or the denoiser has
            no positions for it.
    """
    multiple, most = model.shape_multiple, model.largest_side
    for shape in shapes:
        sides = (shape.height, shape.width)
        if any(side % multiple or side < multiple for side in sides):
            raise ConfigurationError(
                f"IMAGEFLEET_SHAPES: {shape}: height and width must be multiples of {multiple} "
                f"(autoencoder {model.pixels_per_latent} x denoiser "
                f"{multiple // model.pixels_per_latent})"
            )
        if most is not None and max(sides) > most:
            raise ConfigurationError(
                f"IMAGEFLEET_SHAPES: {shape}: height and width must be at most {most} (the "
                "denoiser has no positions beyond)"
            )
    return tuple(shapes)


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

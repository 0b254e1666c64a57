"""Read what a model is without its weights, and check the settings of a worker against it.

Input: the configs and tokenizers of a checkpoint, the settings, the files of textual inversions.
Output: a `ModelSetup`, or an error that names what is wrong. It uses no devices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import ml_dtypes
import numpy as np

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.textual_inversion import (
    Floats,
    TextualInversion,
    VectorsById,
    read_textual_inversions,
)
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import Family
from imagefleet.worker.engine.loading.find_checkpoint import open_checkpoint
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer, PromptTokenizer

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """What is known of a model before its weights are read."""

    files: CheckpointFiles
    configs: Configs
    shapes: tuple[Shape, ...]
    """The declared shapes, or the native one."""
    tokenizer: PromptTokenizer
    """With the tokens of the textual inversions."""
    inversions: tuple[TextualInversion, ...]
    vectors: Mapping[str, VectorsById]
    """Those of the textual inversions; see `add_textual_inversions`."""
    default_steps: int
    default_guidance: float
    default_scheduler: str

    @classmethod
    def read(cls, folder: Path, shapes: Sequence[Shape], options: ModelOptions) -> Self:
        """Read the checkpoint that `find_checkpoint` found, and check the settings against it.

        Raises:
            CheckpointError: the checkpoint, or a textual inversion, cannot be used.
            ConfigurationError: the model does not support a shape or the scheduler.
        """
        files = open_checkpoint(folder)
        configs = Configs.read(files, safety_checker=options.safety_checker)
        shapes = choose_shapes(shapes, configs)
        tokenizer = load_tokenizer(files, configs)
        inversions = read_textual_inversions(options.textual_inversions, configs)
        vectors = add_textual_inversions(inversions, tokenizer, configs)
        steps, guidance = default_parameters(files, configs.family)
        return cls(
            files=files,
            configs=configs,
            shapes=shapes,
            tokenizer=tokenizer,
            inversions=inversions,
            vectors=vectors,
            default_steps=steps,
            default_guidance=guidance,
            default_scheduler=registry.default(configs.noise, options.scheduler),
        )


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

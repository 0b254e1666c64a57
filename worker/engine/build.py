"""From a checkpoint folder to an engine on devices.

Goes in: a folder in diffusers' layout. Comes out: a `DiffusionEngine` with the weights placed, not
yet compiled. Everything that can be wrong with a checkpoint is said here.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from flax import nnx

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine import memory_check
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.files import TensorFiles, digest, read_json
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, require_complete
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.interface import ModelInfo, Shape
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.models.clip_text import ClipText
from imagefleet.worker.engine.models.safety import SafetyChecker
from imagefleet.worker.engine.models.unet import UNet
from imagefleet.worker.engine.models.vae import Vae
from imagefleet.worker.engine.prompts import PromptEncoder
from imagefleet.worker.engine.sampling import DiffusionPrograms, Weights
from imagefleet.worker.engine.schedulers import registry
from imagefleet.worker.engine.tokenizer import ClipTokenizer, PromptTokenizer

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def load_stable_diffusion(
    folder: Path,
    *,
    name: str,
    shapes: Sequence[Shape],
    placement: Placement,
    per_device_batch: int,
    dtype: str | None,
    max_num_inference_steps: int,
    safety_checker: bool,
    shelf: ExecutableCache,
) -> DiffusionEngine:
    """
    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: a shape or dtype this model cannot have, or too little memory.
    """
    configs = Configs.read(folder, safety_checker=safety_checker)
    shapes = tuple(shapes) or (configs.native,)
    _require_divisible(shapes, configs)
    number, platform = _dtype(dtype, placement.platform), placement.platform
    workspace = max(
        memory_check.workspace(
            configs, shape, per_device_batch=per_device_batch, dtype=number, platform=platform
        )
        for shape in shapes
    )
    sampler, weights = load_networks(folder, configs, placement, number, workspace)
    return DiffusionEngine(
        info=_info(folder, name, shapes, configs, max_num_inference_steps),
        sampler=sampler,
        weights=weights,
        tokenizer=load_tokenizer(folder, configs),
        noise=configs.noise,
        placement=placement,
        per_device_batch=per_device_batch,
        shelf=shelf,
    )


def load_networks(
    folder: Path,
    configs: Configs,
    placement: Placement,
    dtype: np.dtype[Any],
    workspace: int = 0,
) -> tuple[DiffusionPrograms, Weights]:
    """The networks' structure, and their weights on the devices.

    Raises:
        CheckpointError: weights that do not fit, all of them at once.
        TooLittleMemory: no room for them beside a `workspace` of so many bytes a device.
    """
    networks = _networks(configs)
    plans = {
        name: WeightMapping(name, network, TensorFiles(folder / name))
        for name, network in networks.items()
    }
    require_complete(plans.values())
    held = sum(plan.bytes_on_a_device(dtype, placement) for plan in plans.values())
    memory_check.require_room(held, workspace, placement)
    graphs: dict[str, Any] = {name: nnx.graphdef(network) for name, network in networks.items()}
    states = {name: plan.load(dtype, placement) for name, plan in plans.items()}
    texts = configs.family.text_encoders
    sampler = DiffusionPrograms(
        prompts=PromptEncoder(
            networks=tuple(graphs[name] for name in texts), empty_is_zero=configs.empty_is_zero
        ),
        unet=graphs["unet"],
        vae=graphs["vae"],
        safety=graphs.get("safety_checker"),
        latent_channels=configs.vae.latent_channels,
        scaling_factor=configs.vae.scaling_factor,
        pixels_per_latent=configs.vae.downsampling,
        dtype=dtype,
    )
    return sampler, Weights(
        text=tuple(states[name] for name in texts),
        unet=states["unet"],
        vae=states["vae"],
        safety=states.get("safety_checker"),
    )


def _networks(configs: Configs) -> dict[str, nnx.Module]:
    """By folder; without weights."""
    networks = {
        name: abstract(ClipText, config)
        for name, config in zip(configs.family.text_encoders, configs.texts, strict=True)
    }
    networks |= {"unet": abstract(UNet, configs.unet), "vae": abstract(Vae, configs.vae)}
    if configs.safety is not None:
        networks["safety_checker"] = abstract(SafetyChecker, configs.safety)
    return networks


def load_tokenizer(folder: Path, configs: Configs) -> PromptTokenizer:
    """
    Raises:
        CheckpointError: files that are missing, or of another kind of tokenizer.
    """
    return PromptTokenizer(
        [
            ClipTokenizer(folder / name, config.max_position_embeddings)
            for name, config in zip(configs.family.tokenizers, configs.texts, strict=True)
        ]
    )


def abstract(network: Callable[..., nnx.Module], config: object) -> nnx.Module:
    """The network with shapes for weights: nothing is initialised only to be thrown away."""
    return nnx.eval_shape(lambda: network(config))


def _info(
    folder: Path, name: str, shapes: tuple[Shape, ...], configs: Configs, max_steps: int
) -> ModelInfo:
    steps, guidance = _defaults(folder, configs.family.guidance_scale)
    max_steps = min(max_steps, configs.noise.num_train_timesteps)
    return ModelInfo(
        name=name,
        digest=digest(folder),
        shapes=shapes,
        schedulers=registry.available(configs.noise),
        default_scheduler=registry.default(configs.noise),
        default_num_inference_steps=min(steps, max_steps),
        default_guidance_scale=guidance,
        max_num_inference_steps=max_steps,
        versions={library: version(library) for library in ("jax", "jaxlib", "flax")},
    )


def _defaults(folder: Path, usual_guidance: float) -> tuple[int, float]:
    """Steps and guidance from the checkpoint's `imagefleet.json`, else diffusers' own."""
    ours = folder / "imagefleet.json"
    given: Mapping[str, Any] = read_json(ours) if ours.is_file() else {}
    steps, guidance = (
        given.get("num_inference_steps", 50),
        given.get("guidance_scale", usual_guidance),
    )
    if not isinstance(steps, int) or steps < 1:
        raise CheckpointError(f"imagefleet.json: num_inference_steps={steps!r} is not a count")
    if not isinstance(guidance, int | float) or guidance < 0:
        raise CheckpointError(f"imagefleet.json: guidance_scale={guidance!r} is not a scale")
    return steps, float(guidance)


def _require_divisible(shapes: Sequence[Shape], configs: Configs) -> None:
    unit = configs.granularity
    for shape in shapes:
        if shape.height % unit or shape.width % unit or min(shape.height, shape.width) < unit:
            raise ConfigurationError(
                f"shape {shape}: height and width must be multiples of {unit} "
                f"(autoencoder {configs.vae.downsampling} x UNet {configs.unet.downsampling})"
            )


def _dtype(name: str | None, platform: str) -> np.dtype[Any]:
    name = name or ("float32" if platform == "cpu" else "bfloat16")
    if name not in _DTYPES:
        raise ConfigurationError(f"dtype={name!r}: there are {', '.join(_DTYPES)}")
    return _DTYPES[name]

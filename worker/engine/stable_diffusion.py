"""From a checkpoint folder to an engine on devices.

Goes in: a folder in diffusers' layout. Comes out: a `DiffusionEngine` with the weights placed, not
yet compiled. Everything that can be wrong with a checkpoint is said here.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import ml_dtypes
import numpy as np
from flax import nnx

from shared.errors import CheckpointError, ConfigurationError
from worker.engine.base import ModelInfo, Shape
from worker.engine.checkpoint import TensorFiles, digest, read_json
from worker.engine.mesh import Placement
from worker.engine.models.clip_text import ClipText, ClipTextConfig
from worker.engine.models.unet import UNet, UNetConfig
from worker.engine.models.vae import VaeConfig, VaeDecoder, VaeEncoder
from worker.engine.pipeline import DiffusionEngine
from worker.engine.sampling import Sampler, Weights
from worker.engine.schedulers import catalogue
from worker.engine.schedulers.noise import NoiseSchedule
from worker.engine.tokenizer import ClipTokenizer
from worker.engine.weights import Plan, require_complete

log = logging.getLogger(__name__)

_FAMILY: Final = "StableDiffusionPipeline"
_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass(frozen=True)
class Configs:
    """The JSON of a checkpoint, checked one by one and against each other."""

    text: ClipTextConfig
    unet: UNetConfig
    vae: VaeConfig
    noise: NoiseSchedule

    @classmethod
    def read(cls, folder: Path) -> Self:
        """
        Raises:
            CheckpointError: a file is missing, of another family, or does not fit the others.
        """
        index = read_json(folder / "model_index.json")
        if (family := index.get("_class_name")) != _FAMILY:
            raise CheckpointError(f"the checkpoint is a {family}; this engine runs {_FAMILY}")
        if index.get("safety_checker", [None])[0] is not None:
            log.warning("the checkpoint's safety checker is not run by this engine yet")
        configs = cls(
            ClipTextConfig.from_json(read_json(folder / "text_encoder" / "config.json")),
            UNetConfig.from_json(read_json(folder / "unet" / "config.json")),
            VaeConfig.from_json(read_json(folder / "vae" / "config.json")),
            NoiseSchedule.from_json(read_json(folder / "scheduler" / "scheduler_config.json")),
        )
        configs._require_fit()
        return configs

    def _require_fit(self) -> None:
        latent, text = self.vae.latent_channels, self.text.hidden_size
        for what, one, other in (
            ("UNet in_channels, autoencoder latent_channels", self.unet.in_channels, latent),
            ("UNet out_channels, autoencoder latent_channels", self.unet.out_channels, latent),
            ("UNet cross_attention_dim, text hidden_size", self.unet.cross_attention_dim, text),
        ):
            if one != other:
                raise CheckpointError(
                    f"the parts of this checkpoint do not fit: {what} are {one} and {other}"
                )

    @property
    def granularity(self) -> int:
        """Picture sizes are multiples of this."""
        return self.vae.downsampling * self.unet.downsampling

    @property
    def native(self) -> Shape:
        """The size the model was trained at."""
        side = self.unet.sample_size * self.vae.downsampling
        return Shape(height=side, width=side)


def load_stable_diffusion(
    folder: Path,
    *,
    name: str,
    shapes: Sequence[Shape],
    placement: Placement,
    per_device_batch: int,
    dtype: str | None,
    max_num_inference_steps: int,
) -> DiffusionEngine:
    """
    Raises:
        CheckpointError: the checkpoint cannot be used.
        ConfigurationError: a shape or dtype this model cannot have.
    """
    configs = Configs.read(folder)
    _require_divisible(shapes, configs)
    number = _dtype(dtype, placement.platform)
    tokenizer = ClipTokenizer(folder / "tokenizer", configs.text.max_position_embeddings)
    sampler, weights = load_networks(folder, configs, placement, number)
    return DiffusionEngine(
        info=_info(
            folder, name, tuple(shapes) or (configs.native,), configs, max_num_inference_steps
        ),
        sampler=sampler,
        weights=weights,
        tokenizer=tokenizer,
        noise=configs.noise,
        placement=placement,
        per_device_batch=per_device_batch,
        pixels_per_latent=configs.vae.downsampling,
    )


def load_networks(
    folder: Path, configs: Configs, placement: Placement, dtype: np.dtype[Any]
) -> tuple[Sampler, Weights]:
    """The networks' structure, and their weights on every device.

    Raises:
        CheckpointError: weights that do not fit, all of them at once.
    """
    text, unet = abstract(ClipText, configs.text), abstract(UNet, configs.unet)
    vae, unneeded = abstract(VaeDecoder, configs.vae), abstract(VaeEncoder, configs.vae)
    plans = (
        Plan("text_encoder", text, TensorFiles(folder / "text_encoder")),
        Plan("unet", unet, TensorFiles(folder / "unet")),
        Plan("vae", vae, TensorFiles(folder / "vae"), left=[unneeded]),
    )
    require_complete(plans)
    sampler = Sampler(
        text=nnx.graphdef(text),
        unet=nnx.graphdef(unet),
        vae=nnx.graphdef(vae),
        latent_channels=configs.vae.latent_channels,
        scaling_factor=configs.vae.scaling_factor,
        dtype=dtype,
    )
    return sampler, Weights(*(plan.load(dtype, placement.copy) for plan in plans))


def abstract(network: Callable[..., nnx.Module], config: object) -> nnx.Module:
    """The network with shapes for weights: nothing is initialised only to be thrown away."""
    return nnx.eval_shape(lambda: network(config))


def _info(
    folder: Path, name: str, shapes: tuple[Shape, ...], configs: Configs, max_steps: int
) -> ModelInfo:
    steps, guidance = _defaults(folder)
    max_steps = min(max_steps, configs.noise.num_train_timesteps)
    return ModelInfo(
        name=name,
        digest=digest(folder),
        shapes=shapes,
        schedulers=catalogue.available(configs.noise),
        default_scheduler=catalogue.default(configs.noise),
        default_num_inference_steps=min(steps, max_steps),
        default_guidance_scale=guidance,
        max_num_inference_steps=max_steps,
        versions={library: version(library) for library in ("jax", "jaxlib", "flax")},
    )


def _defaults(folder: Path) -> tuple[int, float]:
    """Steps and guidance from the checkpoint's `imagefleet.json`, else diffusers' own."""
    ours = folder / "imagefleet.json"
    given: Mapping[str, Any] = read_json(ours) if ours.is_file() else {}
    steps, guidance = given.get("num_inference_steps", 50), given.get("guidance_scale", 7.5)
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

"""Stable Diffusion's safety checker: which pictures its authors would not show.

Goes in: uint8 pictures. Comes out: a verdict for each. The concepts are vectors in the checkpoint,
without names (Rando et al. 2022 guess them). Knows nothing of what happens to a flagged picture.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.models.blocks import linear
from imagefleet.worker.engine.models.clip_vision import ClipVision, ClipVisionConfig
from imagefleet.worker.engine.models.config import ConfigReader, Json

_CONCEPTS: Final = 17
_SPECIAL_CARE: Final = 3
_SPECIAL_CARE_BONUS: Final = 0.01
"""Added to a picture's scores once any of the special concepts is met."""
_LEAST_SCORE: Final = 0.0005
"""diffusers rounds scores to three digits before it asks whether they are above 0."""
_CUBIC: Final = 3
"""Pillow's number for bicubic resampling."""
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's own, of each colour."""


@dataclass(frozen=True, kw_only=True)
class PictureConfig:
    """`feature_extractor/preprocessor_config.json`: how a picture is made ready for CLIP."""

    shortest_edge: int
    crop: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that ask for something else.
        """
        fields = ConfigReader("feature extractor", config)
        fields.ignored(*config)
        fields.fixed(do_resize=True, do_center_crop=True, do_normalize=True, resample=_CUBIC)
        edge = _side(fields, "size", "shortest_edge")
        crop = _side(fields, "crop_size", "height")
        if crop > edge:
            fields.fault(f"crop_size={crop} is more than size={edge}")
        read = cls(
            shortest_edge=edge,
            crop=crop,
            mean=fields.numbers("image_mean", length=3) or _MEAN,
            deviation=fields.numbers("image_std", length=3, above=0) or _DEVIATION,
        )
        fields.finish()
        return read


def _side(fields: ConfigReader, name: str, key: str) -> int:
    """A length given bare, as in older files, or in a record."""
    value: Any = fields.get(name, 224)
    side = value.get(key) if isinstance(value, dict) else value
    if not isinstance(side, int):
        fields.fault(f"{name}={value!r} (implemented: a number, or its {key!r})")
        return 1
    return side


@dataclass(frozen=True, kw_only=True)
class SafetyConfig:
    """`safety_checker/config.json` and the feature extractor's."""

    vision: ClipVisionConfig
    projection_dim: int
    picture: PictureConfig

    @classmethod
    def from_json(cls, config: Json, preprocessor: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("safety checker", config)
        fields.ignored(*config)
        # Files of 2022 write what differs from the defaults here, and it counts.
        vision = {**fields.get("vision_config", {}), **(fields.get("vision_config_dict", {}) or {})}
        read = cls(
            vision=ClipVisionConfig.from_json(vision),
            projection_dim=fields.count("projection_dim", 512),
            picture=PictureConfig.from_json(preprocessor),
        )
        if read.picture.crop != read.vision.image_size:
            fields.fault(
                f"vision_config.image_size={read.vision.image_size} "
                f"(the feature extractor makes {read.picture.crop})"
            )
        fields.finish()
        return read


def prepared(pictures: jax.Array, config: PictureConfig) -> jax.Array:
    """CLIPImageProcessor on the device: shortest edge, centre, normalise.

    Args:
        pictures: uint8 `[b, h, w, 3]`.

    Returns:
        float32 `[b, crop, crop, 3]`. Before it is normalised, Pillow may round a value the other
        way: one level of 255.
    """
    batch, height, width, _ = pictures.shape
    edge, short = config.shortest_edge, min(height, width)
    rows, columns = (int(edge * side / short) for side in (height, width))
    # Width first, and whole levels in between: so Pillow does it.
    wide = _levels(jax.image.resize(pictures * 1.0, (batch, height, columns, 3), "cubic"))
    levels = _levels(jax.image.resize(wide, (batch, rows, columns, 3), "cubic"))
    top, left = (rows - config.crop) // 2, (columns - config.crop) // 2
    centre = levels[:, top : top + config.crop, left : left + config.crop]
    return (centre / 255 - jnp.array(config.mean)) / jnp.array(config.deviation)


def _levels(pixels: jax.Array) -> jax.Array:
    return jnp.round(jnp.clip(pixels, 0, 255))


def _cosines(states: jax.Array, concepts: jax.Array) -> jax.Array:
    """`[b, d]` and `[k, d]` to `[b, k]`, float32."""

    def unit(x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    return unit(states) @ unit(concepts).T


class SafetyChecker(nnx.Module):
    """StableDiffusionSafetyChecker."""

    def __init__(self, config: SafetyConfig) -> None:
        width = config.projection_dim
        self.config = config
        self.vision_model = ClipVision(config.vision)
        self.visual_projection = linear(config.vision.hidden_size, width, use_bias=False)
        self.concept_embeds = nnx.Param(jnp.zeros((_CONCEPTS, width)))
        self.special_care_embeds = nnx.Param(jnp.zeros((_SPECIAL_CARE, width)))
        self.concept_embeds_weights = nnx.Param(jnp.zeros(_CONCEPTS))
        self.special_care_embeds_weights = nnx.Param(jnp.zeros(_SPECIAL_CARE))

    def __call__(self, pictures: jax.Array) -> jax.Array:
        """uint8 `pictures [b, h, w, 3]`; bool `[b]`, true where one is not to be shown."""
        pixels = prepared(pictures, self.config.picture)
        states = self.embed(pixels.astype(self.visual_projection.kernel.dtype))
        special = self._met(states, self.special_care_embeds, self.special_care_embeds_weights)
        bonus = jnp.where(special.any(axis=-1, keepdims=True), _SPECIAL_CARE_BONUS, 0.0)
        found = self._met(states, self.concept_embeds, self.concept_embeds_weights, bonus)
        return found.any(axis=-1)

    def embed(self, pixels: jax.Array) -> jax.Array:
        """Prepared pictures to `[b, projection_dim]`."""
        states: jax.Array = self.visual_projection(self.vision_model(pixels))
        return states

    def _met(
        self,
        states: jax.Array,
        concepts: nnx.Param[jax.Array],
        thresholds: nnx.Param[jax.Array],
        bonus: jax.Array | float = 0.0,
    ) -> jax.Array:
        scores = _cosines(states, concepts[...]) - thresholds[...].astype(jnp.float32) + bonus
        return scores > _LEAST_SCORE

"""Define Stable Diffusion's safety checker.

Input: uint8 images. Output: whether each is flagged. The unwanted concepts are unnamed vectors in
the checkpoint (Rando et al. 2022 infer their names). This module does not change a flagged image.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

import jax
import jax.numpy as jnp
from flax import nnx

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.checkpoint.weights import WeightNames
from imagefleet.worker.engine.networks.blocks import linear
from imagefleet.worker.engine.networks.clip_vision import ClipVision, ClipVisionConfig
from imagefleet.worker.engine.networks.unset_weights import zeros

_CONCEPTS: Final = 17
_SPECIAL_CARE: Final = 3
_SPECIAL_CARE_BONUS: Final = 0.01
"""It is added to the concept scores of an image that matches any special-care concept."""
_MIN_SCORE: Final = 0.0005
"""diffusers rounds scores to three digits and then compares them with 0."""
_BICUBIC: Final = 3
"""Pillow has this number for bicubic resampling."""
_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION: Final = (0.26862954, 0.26130258, 0.27577711)
"""CLIP's standard deviation of red, green and blue; `_MEAN` is its mean."""


@dataclass(frozen=True, kw_only=True)
class ImageProcessorConfig:
    """It is `feature_extractor/preprocessor_config.json`: the preprocessing of images for CLIP."""

    shortest_edge: int
    crop: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are unsupported.
        """
        fields = ConfigReader("feature_extractor/preprocessor_config.json", config)
        fields.ignore(*config)
        fields.require(do_resize=True, do_center_crop=True, do_normalize=True, resample=_BICUBIC)
        fields.require(do_rescale=True, rescale_factor=1 / 255, use_square_size=False)
        edge = _side(fields, "size", "shortest_edge")
        crop = _side(fields, "crop_size", "height")
        if crop > edge:
            fields.add_error(f"crop_size={crop} is more than size={edge}; it must not exceed it")
        checked = cls(
            shortest_edge=edge,
            crop=crop,
            mean=fields.numbers("image_mean", length=3) or _MEAN,
            deviation=fields.numbers("image_std", length=3, above=0) or _DEVIATION,
        )
        fields.finish()
        return checked


def _side(fields: ConfigReader, name: str, key: str) -> int:
    """Return a length, which is a number in older files and a dictionary in current ones."""
    value: Any = fields.get(name, 224)
    side = value.get(key) if isinstance(value, dict) else value
    if not isinstance(side, int):
        fields.add_error(f"{name}={value!r} (supported: a number, or a dictionary with {key!r})")
        return 1
    return side


@dataclass(frozen=True, kw_only=True)
class SafetyConfig:
    """It has `safety_checker/config.json` and the feature extractor's config."""

    vision: ClipVisionConfig
    projection_dim: int
    image_processor: ImageProcessorConfig

    @classmethod
    def from_json(cls, config: Json, preprocessor: Json) -> Self:
        """Read both configs.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("safety_checker/config.json", config)
        fields.ignore(*config)
        # Files of 2022 hold the non-default values in vision_config_dict, which takes precedence.
        vision = {**fields.get("vision_config", {}), **(fields.get("vision_config_dict", {}) or {})}
        checked = cls(
            vision=ClipVisionConfig.from_json(vision),
            projection_dim=fields.count("projection_dim", 512),
            image_processor=ImageProcessorConfig.from_json(preprocessor),
        )
        if checked.image_processor.crop != checked.vision.image_size:
            fields.add_error(
                f"vision_config.image_size={checked.vision.image_size} "
                f"must equal crop_size={checked.image_processor.crop} of the feature extractor"
            )
        fields.finish()
        return checked


def preprocess_images(images: jax.Array, config: ImageProcessorConfig) -> jax.Array:
    """Resize, centre-crop and normalise images, as transformers' CLIPImageProcessor does.

    Args:
        images: uint8 `[b, h, w, 3]`.

    Returns:
        float32 `[b, crop, crop, 3]`. Before normalisation, values may differ from Pillow's by one
        level of 255, because Pillow rounds some of them the other way.
    """
    batch, height, width, _ = images.shape
    edge, short = config.shortest_edge, min(height, width)
    rows, columns = (int(edge * side / short) for side in (height, width))
    # Like Pillow: first the width, then the height, each rounded to whole levels.
    resized = _round_levels(jax.image.resize(images * 1.0, (batch, height, columns, 3), "cubic"))
    resized = _round_levels(jax.image.resize(resized, (batch, rows, columns, 3), "cubic"))
    top, left = (rows - config.crop) // 2, (columns - config.crop) // 2
    centre = resized[:, top : top + config.crop, left : left + config.crop]
    return (centre / 255 - jnp.array(config.mean)) / jnp.array(config.deviation)


def _round_levels(pixels: jax.Array) -> jax.Array:
    return jnp.round(jnp.clip(pixels, 0, 255))


def _cosines(states: jax.Array, concepts: jax.Array) -> jax.Array:
    """Return the cosine similarities of `[b, d]` and `[k, d]`: float32 `[b, k]`."""

    def unit(x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    return unit(states) @ unit(concepts).T


class SafetyChecker(nnx.Module):
    """It is diffusers' StableDiffusionSafetyChecker."""

    weight_names: ClassVar = WeightNames(
        to_checkpoint=((r"\bvision_model\.layers\b", "vision_model.encoder.layers"),),
        from_old=((r"^vision_model\.vision_model\.", "vision_model."),),
        buffers=frozenset({"vision_model.embeddings.position_ids"}),
    )

    def __init__(self, config: SafetyConfig) -> None:
        width = config.projection_dim
        self.config = config
        self.vision_model = ClipVision(config.vision)
        self.visual_projection = linear(config.vision.hidden_size, width, use_bias=False)
        self.concept_embeds = nnx.Param(zeros(_CONCEPTS, width))
        self.special_care_embeds = nnx.Param(zeros(_SPECIAL_CARE, width))
        self.concept_embeds_weights = nnx.Param(zeros(_CONCEPTS))
        self.special_care_embeds_weights = nnx.Param(zeros(_SPECIAL_CARE))

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return bool `[b]`: whether each of the uint8 `images [b, h, w, 3]` is flagged."""
        pixels = preprocess_images(images, self.config.image_processor)
        states = self.embed(pixels.astype(self.visual_projection.kernel.dtype))
        special = self._matches(states, self.special_care_embeds, self.special_care_embeds_weights)
        bonus = jnp.where(special.any(axis=-1, keepdims=True), _SPECIAL_CARE_BONUS, 0.0)
        matches = self._matches(states, self.concept_embeds, self.concept_embeds_weights, bonus)
        return matches.any(axis=-1)

    def embed(self, pixels: jax.Array) -> jax.Array:
        """Embed preprocessed images: `[b, crop, crop, 3]` to `[b, projection_dim]`."""
        states: jax.Array = self.visual_projection(self.vision_model(pixels))
        return states

    def _matches(
        self,
        states: jax.Array,
        concepts: nnx.Param[jax.Array],
        thresholds: nnx.Param[jax.Array],
        bonus: jax.Array | float = 0.0,
    ) -> jax.Array:
        """Return bool `[b, concepts]`: whether the similarity exceeds a concept's threshold."""
        scores = _cosines(states, concepts[...]) - thresholds[...].astype(jnp.float32) + bonus
        return scores > _MIN_SCORE

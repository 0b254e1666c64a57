"""Which checkpoints this engine runs, and what their JSON says.

Goes in: a folder in diffusers' layout. Comes out: the configs of its networks, checked one by one
and against each other. Reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.files import networks_of, read_json
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.models.clip_text import ClipTextConfig
from imagefleet.worker.engine.models.safety import SafetyConfig
from imagefleet.worker.engine.models.unet_config import UNetConfig
from imagefleet.worker.engine.models.vae import VaeConfig
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of pipeline, by the folders of its parts."""

    text_encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    guidance_scale: float
    """diffusers' default."""


FAMILIES: Final[Mapping[str, Family]] = {
    "StableDiffusionPipeline": Family(
        text_encoders=("text_encoder",),
        tokenizers=("tokenizer",),
        guidance_scale=7.5,
    ),
    "StableDiffusionXLPipeline": Family(
        text_encoders=("text_encoder", "text_encoder_2"),
        tokenizers=("tokenizer", "tokenizer_2"),
        guidance_scale=5.0,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Configs:
    """The JSON of a checkpoint."""

    family: Family
    texts: tuple[ClipTextConfig, ...]
    unet: UNetConfig
    vae: VaeConfig
    noise: NoiseSchedule
    safety: SafetyConfig | None
    """None: the checkpoint has no checker, or it was not asked for."""
    empty_is_zero: bool
    """`force_zeros_for_empty_prompt`."""

    @classmethod
    def read(cls, folder: Path, *, safety_checker: bool = True) -> Self:
        """
        Args:
            folder: With a model_index.json.
            safety_checker: Whether to have the checkpoint's, if it has one.

        Raises:
            CheckpointError: a file is missing, of another family, or does not fit the others.
        """
        index = read_json(folder / "model_index.json")
        family = _family(index)
        configs = cls(
            family=family,
            texts=tuple(
                ClipTextConfig.from_json(read_json(folder / name / "config.json"))
                for name in family.text_encoders
            ),
            unet=UNetConfig.from_json(read_json(folder / "unet" / "config.json")),
            vae=VaeConfig.from_json(read_json(folder / "vae" / "config.json")),
            noise=NoiseSchedule.from_json(
                read_json(folder / "scheduler" / "scheduler_config.json")
            ),
            safety=_safety(folder, index) if safety_checker else None,
            empty_is_zero=bool(index.get("force_zeros_for_empty_prompt", False)),
        )
        configs._require_fit()
        return configs

    def _require_fit(self) -> None:
        latent, text = self.vae.latent_channels, sum(text.hidden_size for text in self.texts)
        lengths = {config.max_position_embeddings for config in self.texts}
        added = self.unet.added
        pooled = self.texts[-1].projection_dim if len(self.texts) > 1 else None
        for what, one, other in (
            ("UNet in_channels, autoencoder latent_channels", self.unet.in_channels, latent),
            ("UNet out_channels, autoencoder latent_channels", self.unet.out_channels, latent),
            ("UNet cross_attention_dim, text hidden_size", self.unet.cross_attention_dim, text),
            ("UNet pooled text, text projection_dim", added and added.pooled, pooled),
            ("text max_position_embeddings", min(lengths), max(lengths)),
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


def _safety(folder: Path, index: Mapping[str, Any]) -> SafetyConfig | None:
    if "safety_checker" not in networks_of(index):
        return None
    return SafetyConfig.from_json(
        read_json(folder / "safety_checker" / "config.json"),
        read_json(folder / "feature_extractor" / "preprocessor_config.json"),
    )


def _family(index: Mapping[str, Any]) -> Family:
    name = str(index.get("_class_name"))
    if (family := FAMILIES.get(name)) is None:
        raise CheckpointError(
            f"the checkpoint is a {name}; this engine runs {' and '.join(FAMILIES)}"
        )
    for part in (*family.text_encoders, *family.tokenizers, "unet", "vae", "scheduler"):
        if not (index.get(part) or [None])[0]:
            raise CheckpointError(f"the checkpoint is a {name} without its {part}")
    return family

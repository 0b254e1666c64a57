"""Read the configs of a checkpoint.

The input is a folder in diffusers' layout, the output the configs of its networks. Each config is
checked alone, then against the others. This module reads no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.tensor_files import network_folders, read_json
from imagefleet.worker.engine.interface import Shape
from imagefleet.worker.engine.models.clip_text import ClipTextConfig
from imagefleet.worker.engine.models.safety import SafetyConfig
from imagefleet.worker.engine.models.unet_config import UNetConfig
from imagefleet.worker.engine.models.vae import VaeConfig
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule


@dataclass(frozen=True, kw_only=True)
class Family:
    """A diffusers pipeline class that this engine runs, with the folders of its parts."""

    text_encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    guidance_scale: float
    """The default of this pipeline in diffusers."""


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
    """The configs of all parts of a checkpoint."""

    family: Family
    text_encoders: tuple[ClipTextConfig, ...]
    unet: UNetConfig
    vae: VaeConfig
    noise: NoiseSchedule
    safety: SafetyConfig | None
    """None if the checkpoint has no safety checker, or the caller turned it off."""
    force_zeros_for_empty_prompt: bool
    """Whether the states of an empty negative prompt are zeros (model_index.json, SDXL)."""

    @classmethod
    def read(cls, folder: Path, *, safety_checker: bool = True) -> Self:
        """Read and check the configs in `folder`.

        Args:
            folder: A folder with a model_index.json.
            safety_checker: Whether to read the safety checker, if the checkpoint has one.

        Raises:
            CheckpointError: A file is missing, is of an unsupported pipeline, or contradicts
                another file.
        """
        index = read_json(folder / "model_index.json")
        family = _family(index)
        configs = cls(
            family=family,
            text_encoders=tuple(
                ClipTextConfig.from_json(
                    read_json(folder / name / "config.json"), file=f"{name}/config.json"
                )
                for name in family.text_encoders
            ),
            unet=UNetConfig.from_json(read_json(folder / "unet" / "config.json")),
            vae=VaeConfig.from_json(read_json(folder / "vae" / "config.json")),
            noise=NoiseSchedule.from_json(
                read_json(folder / "scheduler" / "scheduler_config.json")
            ),
            safety=_safety(folder, index) if safety_checker else None,
            force_zeros_for_empty_prompt=bool(index.get("force_zeros_for_empty_prompt", False)),
        )
        configs._require_consistent()
        return configs

    def _require_consistent(self) -> None:
        latent = self.vae.latent_channels
        text = sum(config.hidden_size for config in self.text_encoders)
        lengths = {config.max_position_embeddings for config in self.text_encoders}
        text_time = self.unet.text_time
        pooled = self.text_encoders[-1].projection_dim if len(self.text_encoders) > 1 else None
        for fields, one, other in (
            ("UNet in_channels, autoencoder latent_channels", self.unet.in_channels, latent),
            ("UNet out_channels, autoencoder latent_channels", self.unet.out_channels, latent),
            ("UNet cross_attention_dim, text hidden_size", self.unet.cross_attention_dim, text),
            ("UNet pooled text, text projection_dim", text_time and text_time.pooled, pooled),
            ("text max_position_embeddings", min(lengths), max(lengths)),
        ):
            if one != other:
                raise CheckpointError(
                    f"the configs of this checkpoint contradict each other: {fields} must be "
                    f"equal but are {one} and {other}; take all parts from one model"
                )

    @property
    def shape_multiple(self) -> int:
        """Pixels of which height and width must be multiples."""
        return self.vae.downsampling * self.unet.downsampling

    @property
    def native_shape(self) -> Shape:
        """The shape at which the model was trained."""
        side = self.unet.sample_size * self.vae.downsampling
        return Shape(height=side, width=side)


def _safety(folder: Path, index: Mapping[str, Any]) -> SafetyConfig | None:
    if "safety_checker" not in network_folders(index):
        return None
    return SafetyConfig.from_json(
        read_json(folder / "safety_checker" / "config.json"),
        read_json(folder / "feature_extractor" / "preprocessor_config.json"),
    )


def _family(index: Mapping[str, Any]) -> Family:
    name = str(index.get("_class_name"))
    if (family := FAMILIES.get(name)) is None:
        raise CheckpointError(
            f"model_index.json: _class_name is {name!r}; this engine runs {' and '.join(FAMILIES)}"
        )
    for part in (*family.text_encoders, *family.tokenizers, "unet", "vae", "scheduler"):
        if not (index.get(part) or [None])[0]:
            raise CheckpointError(
                f"model_index.json: {part} is missing, which a {name} needs; "
                "save the whole pipeline with diffusers"
            )
    return family

"""Read `transformer/config.json` of Stable Diffusion 3: diffusers' SD3Transformer2DModel."""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.networks.latent_packing import PATCH

EPSILON: Final = 1e-6
_MLP_RATIO: Final = 4
"""diffusers' class has no fields for these two numbers."""
_DUAL: Final = "dual_attention_layers"


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """It is `transformer/config.json`."""

    sample_size: int
    """It is the side of the latents for which the pipeline makes images."""
    in_channels: int
    num_layers: int
    attention_head_dim: int
    num_attention_heads: int
    joint_attention_dim: int
    """It is the width of the states of a text."""
    pooled_projection_dim: int
    pos_embed_max_size: int
    """The table of positions has this many rows and columns."""
    dual_attention_layers: tuple[int, ...]
    """In these blocks the image also attends to itself alone (3.5 medium)."""
    has_norms: bool
    """Whether the heads of queries and keys are normalised (3.5)."""

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("transformer/config.json", config)
        fields.choice("_use_default_values", None, (None, []))
        fields.choice("patch_size", PATCH, (PATCH,))
        fields.require(quantization_config=None)
        channels = fields.count("in_channels", 16)
        fields.choice("out_channels", 16, (channels, None))
        checked = cls(
            sample_size=fields.count("sample_size", 128),
            in_channels=channels,
            num_layers=fields.count("num_layers", 18),
            attention_head_dim=fields.count("attention_head_dim", 64),
            num_attention_heads=fields.count("num_attention_heads", 18),
            joint_attention_dim=fields.count("joint_attention_dim", 4096),
            pooled_projection_dim=fields.count("pooled_projection_dim", 2048),
            pos_embed_max_size=fields.count("pos_embed_max_size", 96),
            dual_attention_layers=_dual_layers(fields),
            has_norms=fields.choice("qk_norm", None, (None, "rms_norm")) is not None,
        )
        fields.choice("caption_projection_dim", 1152, (checked.width,))
        fields.finish()
        return checked

    @property
    def width(self) -> int:
        """Return the width of the transformer."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def inner_width(self) -> int:
        """Return the width inside the feed-forward layers."""
        return _MLP_RATIO * self.width


def _dual_layers(fields: ConfigReader) -> tuple[int, ...]:
    value = fields.get(_DUAL, ())
    if not isinstance(value, list | tuple):
        fields.add_error(f"{_DUAL}={value!r} is not a list of whole numbers")
        return ()
    return tuple(fields.checked_count(_DUAL, each, minimum=0) for each in value)

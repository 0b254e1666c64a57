"""Read `transformer/config.json` of FLUX.1: diffusers' FluxTransformer2DModel."""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json

ROPE_THETA: Final = 10_000.0
EPSILON: Final = 1e-6
MLP_RATIO: Final = 4
"""The feed-forward layers are so many times as wide as the transformer. diffusers' class has no
fields for these three numbers."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """It is `transformer/config.json`."""

    in_channels: int
    """A token of an image has this many numbers."""
    out_channels: int
    """It is how many of these numbers are predicted, the first ones."""
    num_layers: int
    """The first blocks have weights of their own for the text and for the image."""
    num_single_layers: int
    """The blocks after them have the same weights for text and image."""
    attention_head_dim: int
    num_attention_heads: int
    joint_attention_dim: int
    """It is the width of the states of T5."""
    pooled_projection_dim: int
    """It is the width of the pooled state of CLIP."""
    guidance_embeds: bool
    """Whether the transformer reads the guidance scale (dev), or has none (schnell)."""
    axes_dims_rope: tuple[int, ...]
    """It has the numbers of a head that are rotated by each number of a token's position."""

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("transformer/config.json", config)
        fields.choice("_use_default_values", None, (None, []))
        fields.choice("patch_size", 1, (1,))
        fields.require(quantization_config=None)
        channels = fields.count("in_channels", 64)
        out = fields.get("out_channels", None)
        head_dim = fields.count("attention_head_dim", 128)
        checked = cls(
            in_channels=channels,
            out_channels=fields.checked_count("out_channels", channels if out is None else out),
            num_layers=fields.count("num_layers", 19, minimum=0),
            num_single_layers=fields.count("num_single_layers", 38, minimum=0),
            attention_head_dim=head_dim,
            num_attention_heads=fields.count("num_attention_heads", 24),
            joint_attention_dim=fields.count("joint_attention_dim", 4096),
            pooled_projection_dim=fields.count("pooled_projection_dim", 768),
            guidance_embeds=fields.flag("guidance_embeds", False),
            axes_dims_rope=fields.rotated_axes(
                "axes_dims_rope", (16, 56, 56), ("attention_head_dim", head_dim)
            ),
        )
        fields.finish()
        return checked

    @property
    def width(self) -> int:
        """Return the width of the transformer."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def inner_width(self) -> int:
        """Return the width inside the feed-forward layers."""
        return MLP_RATIO * self.width

"""Read `transformer/config.json` of FLUX.2 klein: diffusers' Flux2Transformer2DModel."""

from dataclasses import dataclass
from typing import Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """It is `transformer/config.json`."""

    in_channels: int
    """A token of an image has this many numbers."""
    num_layers: int
    """The first blocks have weights of their own for the text and for the image."""
    num_single_layers: int
    """The blocks after them have the same weights for text and image."""
    attention_head_dim: int
    num_attention_heads: int
    joint_attention_dim: int
    """It is the width of the text's hidden states, side by side."""
    timestep_guidance_channels: int
    """A time is embedded as this many sinusoids."""
    mlp_ratio: float
    axes_dims_rope: tuple[int, ...]
    """It has the numbers of a head that are rotated by each number of a token's position."""
    rope_theta: float
    eps: float

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
        channels = fields.count("in_channels", 128)
        fields.choice("out_channels", None, (None, channels))
        # FLUX.2 dev embeds its guidance. diffusers' pipeline of klein gives none.
        fields.choice("guidance_embeds", True, (False,))
        head_dim = fields.count("attention_head_dim", 128)
        checked = cls(
            in_channels=channels,
            num_layers=fields.count("num_layers", 8, minimum=0),
            num_single_layers=fields.count("num_single_layers", 48, minimum=0),
            attention_head_dim=head_dim,
            num_attention_heads=fields.count("num_attention_heads", 48),
            joint_attention_dim=fields.count("joint_attention_dim", 15_360),
            timestep_guidance_channels=_even(fields, "timestep_guidance_channels", 256),
            mlp_ratio=fields.number("mlp_ratio", 3.0, above=0),
            axes_dims_rope=fields.rotated_axes(
                "axes_dims_rope", (32, 32, 32, 32), ("attention_head_dim", head_dim)
            ),
            rope_theta=fields.number("rope_theta", 2000.0, above=0),
            eps=fields.number("eps", 1e-6, above=0),
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
        return int(self.width * self.mlp_ratio)


def _even(fields: ConfigReader, name: str, default: int) -> int:
    count = fields.count(name, default)
    if count % 2:
        fields.add_error(f"{name}={count} must be even, since it has sines and cosines")
    return count

"""Read `transformer/config.json` of Z-Image: diffusers' ZImageTransformer2DModel."""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader, Json
from imagefleet.worker.engine.networks.latent_packing import PATCH

TOKENS_MULTIPLE: Final = 32
"""The tokens of a text, and those of an image, are padded to a multiple of this number."""
_MAX_TIME_WIDTH: Final = 256


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """It is `transformer/config.json`."""

    in_channels: int
    dim: int
    n_layers: int
    n_refiner_layers: int
    n_heads: int
    norm_eps: float
    qk_norm: bool
    cap_feat_dim: int
    """It is the width of the text's hidden states."""
    rope_theta: float
    t_scale: float
    """Times from 0 to 1 are multiplied by it before they are embedded."""
    axes_dims: tuple[int, ...]
    """It has the numbers of a head that are rotated by the position in the text, in the rows and in
    the columns."""

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """Read the config.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader("transformer/config.json", config)
        fields.choice("_use_default_values", None, (None, []))
        for name, value in (("all_patch_size", PATCH), ("all_f_patch_size", 1)):
            fields.choice(name, [value], ([value],))
        fields.require(siglip_feat_dim=None, quantization_config=None)
        # diffusers stores n_kv_heads but does not read it: keys have as many heads as queries.
        # axes_lens is the size of diffusers' tables of rotations. Ours have the size of the inputs.
        fields.ignore("n_kv_heads", "axes_lens")
        dim = fields.count("dim", 3840)
        heads = fields.divisor("n_heads", 30, of=(dim,))
        checked = cls(
            in_channels=fields.count("in_channels", 16),
            dim=dim,
            n_layers=fields.count("n_layers", 30),
            n_refiner_layers=fields.count("n_refiner_layers", 2),
            n_heads=heads,
            norm_eps=fields.number("norm_eps", 1e-5, above=0),
            qk_norm=fields.flag("qk_norm", True),
            cap_feat_dim=fields.count("cap_feat_dim", 2560),
            rope_theta=fields.number("rope_theta", 256.0, above=0),
            t_scale=fields.number("t_scale", 1000.0),
            axes_dims=fields.rotated_axes(
                "axes_dims", (32, 48, 48), ("dim / n_heads", dim // heads)
            ),
        )
        fields.finish()
        return checked

    @property
    def time_width(self) -> int:
        """Return the width of the embedding of a time."""
        return min(self.dim, _MAX_TIME_WIDTH)

    @property
    def inner_width(self) -> int:
        """Return the width inside the feed-forward layers."""
        return int(self.dim / 3 * 8)

    @property
    def patch_width(self) -> int:
        """Return the numbers of a token's latents."""
        return PATCH * PATCH * self.in_channels

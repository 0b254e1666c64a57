"""What a UNet2DConditionModel's `config.json` asks for, checked.

Goes in: the parsed JSON. Comes out: a `UNetConfig`, or every field that asks for another network.
"""

from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.models.config import ConfigReader, Json

_ATTENDING: Final = {
    "DownBlock2D": False,
    "CrossAttnDownBlock2D": True,
    "UpBlock2D": False,
    "CrossAttnUpBlock2D": True,
}

_TIME_IDS: Final = 6
"""Numbers that SDXL tells the UNet of a picture: see `UNet.read`."""


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """`unet/config.json`. Tuples have an entry per resolution level, the finest first."""

    sample_size: int
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    down_attends: tuple[bool, ...]
    up_attends: tuple[bool, ...]
    """In the order of the file: the coarsest first."""
    mid_attends: bool
    transformer_layers: tuple[int, ...]
    heads: tuple[int, ...]
    cross_attention_dim: int
    added: "AddedConfig | None"
    norm_num_groups: int
    norm_eps: float
    flip_sin_to_cos: bool
    freq_shift: int

    @classmethod
    def from_json(cls, config: Json) -> Self:
        """
        Raises:
            CheckpointError: fields that are missing or ask for another network.
        """
        fields = ConfigReader("UNet", config)
        channels = fields.counts("block_out_channels", (320, 640, 1280, 1280))
        levels = len(channels)
        _refuse_other_families(fields)
        read = cls(
            sample_size=fields.count("sample_size", 64),
            in_channels=fields.count("in_channels", 4),
            out_channels=fields.count("out_channels", 4),
            block_out_channels=channels,
            layers_per_block=fields.per_level("layers_per_block", 2, levels),
            down_attends=_attends(fields, "down_block_types", levels),
            up_attends=_attends(fields, "up_block_types", levels),
            mid_attends=_mid_attends(fields),
            transformer_layers=fields.per_level("transformer_layers_per_block", 1, levels),
            heads=_heads(fields, channels),
            cross_attention_dim=fields.count("cross_attention_dim", 1280),
            added=AddedConfig.read(fields),
            norm_num_groups=fields.divisor("norm_num_groups", 32, of=channels),
            norm_eps=fields.number("norm_eps", 1e-5, above=0),
            flip_sin_to_cos=fields.flag("flip_sin_to_cos", True),
            freq_shift=fields.count("freq_shift", 0, least=0),
        )
        for width, heads, attends in zip(channels, read.heads, read._levels_attend, strict=False):
            if attends and width % heads:
                fields.fault(f"{heads} heads do not divide block_out_channels={width}")
        fields.finish()
        return read

    @property
    def _levels_attend(self) -> tuple[bool, ...]:
        """On the way down, in the middle or on the way up."""
        *finer, coarsest = self.down_attends
        downwards = (*finer, coarsest or self.mid_attends)
        return tuple(map(any, zip(downwards, reversed(self.up_attends), strict=False)))

    @property
    def downsampling(self) -> int:
        """Latent sizes must be divisible by this."""
        return 1 << (len(self.block_out_channels) - 1)


@dataclass(frozen=True)
class AddedConfig:
    """SDXL's second embedding beside the timestep's: the prompt as a whole, and the picture's size,
    crop and target size."""

    pooled: int
    """Width of the prompt's pooled state."""
    sinusoids: int
    """Width of the embedding of each of the six numbers."""

    @classmethod
    def read(cls, fields: ConfigReader) -> Self | None:
        """None for a family without it."""
        kind = fields.choice("addition_embed_type", None, (None, "text_time"))
        names = ("addition_time_embed_dim", "projection_class_embeddings_input_dim")
        if kind is None:
            fields.ignored(*names)
            return None
        sinusoids, width = (fields.count(name) for name in names)
        if (pooled := width - _TIME_IDS * sinusoids) < 1:
            fields.fault(f"{names[1]}={width} has no room for {_TIME_IDS} x {names[0]}={sinusoids}")
        return cls(pooled, sinusoids)

    @property
    def width(self) -> int:
        return self.pooled + _TIME_IDS * self.sinusoids


def _attends(fields: ConfigReader, name: str, levels: int) -> tuple[bool, ...]:
    side = "Down" if name.startswith("down") else "Up"
    kinds = fields.get(name)
    if not isinstance(kinds, list | tuple) or not kinds:
        fields.fault(f"{name}={kinds!r} is not a list of blocks")
        return (False,) * levels
    for block in kinds:
        fields.one_of(f"{name} entry", block, tuple(k for k in _ATTENDING if side in k))
    if len(kinds) != levels:
        fields.fault(f"{name} has {len(kinds)} entries for {levels} levels")
    return tuple(_ATTENDING.get(str(block), False) for block in kinds)


def _mid_attends(fields: ConfigReader) -> bool:
    kinds = {"UNetMidBlock2DCrossAttn": True, "UNetMidBlock2D": False}
    return bool(kinds.get(str(fields.choice("mid_block_type", next(iter(kinds)), tuple(kinds)))))


def _heads(fields: ConfigReader, channels: tuple[int, ...]) -> tuple[int, ...]:
    """Heads per level. `attention_head_dim` is their number in every published config, against its
    name; where `num_attention_heads` is given too, it is what it says."""
    levels = len(channels)
    if fields.get("num_attention_heads", None) is None:
        return fields.per_level("attention_head_dim", 8, levels)
    heads = fields.per_level("num_attention_heads", None, levels)
    widths = fields.per_level("attention_head_dim", 8, levels)
    if channels != tuple(count * width for count, width in zip(heads, widths, strict=False)):
        fields.fault(
            f"num_attention_heads={list(heads)} x attention_head_dim={list(widths)} "
            f"are not block_out_channels={list(channels)}"
        )
    return heads


def _refuse_other_families(fields: ConfigReader) -> None:
    fields.fixed(
        act_fn="silu",
        attention_type="default",
        center_input_sample=False,
        class_embed_type=None,
        class_embeddings_concat=False,
        conv_in_kernel=3,
        conv_out_kernel=3,
        cross_attention_norm=None,
        downsample_padding=1,
        dual_cross_attention=False,
        encoder_hid_dim=None,
        encoder_hid_dim_type=None,
        mid_block_only_cross_attention=None,
        mid_block_scale_factor=1,
        num_class_embeds=None,
        only_cross_attention=False,
        resnet_out_scale_factor=1.0,
        resnet_skip_time_act=False,
        resnet_time_scale_shift="default",
        reverse_transformer_layers_per_block=None,
        time_cond_proj_dim=None,
        time_embedding_act_fn=None,
        time_embedding_dim=None,
        time_embedding_type="positional",
        timestep_post_act=None,
    )
    # Linear or convolutional projections are the same product over channels-last maps, and
    # attention scores are float32 in any case.
    fields.ignored("use_linear_projection", "upcast_attention", "dropout")
    fields.ignored("addition_embed_type_num_heads")  # of an embedding refused above

"""Read the `config.json` of diffusers' UNet2DConditionModel.

Input: the parsed JSON. Output: a `UNetConfig`. An error lists every unsupported field.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from imagefleet.worker.engine.checkpoint.config_reader import SILU_NAMES, ConfigReader, Json
from imagefleet.worker.engine.families.stable_diffusion.text_time_config import TextTimeConfig

_HAS_ATTENTION: Final = {
    "DownBlock2D": False,
    "CrossAttnDownBlock2D": True,
    "UpBlock2D": False,
    "CrossAttnUpBlock2D": True,
}

_DEFAULT_BLOCKS: Final = {
    "down_block_types": (*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"),
    "up_block_types": ("UpBlock2D", *["CrossAttnUpBlock2D"] * 3),
}

TIME_IDS: Final = 6
"""SDXL's numbers about an image's size and crop: see `time_ids.py`."""


@dataclass(frozen=True, kw_only=True)
class UNetConfig:
    """It is `unet/config.json`. Tuples have an entry per resolution level, the finest first."""

    sample_size: tuple[int, int] | None
    """Height and width of the latents at which the model was trained. None if it does not say."""
    in_channels: int
    out_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: tuple[int, ...]
    down_has_attention: tuple[bool, ...]
    up_has_attention: tuple[bool, ...]
    """It is in the order of the file: the coarsest level first."""
    mid_has_attention: bool
    has_mid_block: bool
    """In distilled UNets without one, the coarsest down block leads to the up blocks."""
    down_transformer_layers: tuple[tuple[int, ...], ...]
    """It counts the layers of the transformer after each layer of the down block, by level."""
    mid_transformer_layers: int
    up_transformer_layers: tuple[tuple[int, ...], ...]
    """It is in the order of the file: the coarsest level first."""
    heads: tuple[int, ...]
    cross_attention_dim: int
    text_time: TextTimeConfig | None
    norm_num_groups: int
    norm_eps: float
    flip_sin_to_cos: bool
    freq_shift: int
    time_cond_proj_dim: int | None
    """It is the width of the embedding of the guidance scale, in UNets distilled from guidance (Luo
    et al. 2023, section 4.2). It is None in all others."""

    @classmethod
    def from_json(
        cls,
        config: Json,
        *,
        old_sample_size: int | None = None,
        time_ids: int = TIME_IDS,
        file: str = "unet/config.json",
    ) -> Self:
        """Read the config.

        Args:
            config: The parsed JSON.
            file: Its name, for errors.
            time_ids: How many numbers about the image the pipeline gives to a `text_time` UNet.
            old_sample_size: The least `sample_size` of a file that diffusers 0.8 or older wrote.
                None: the file is right.

        Raises:
            CheckpointError: Fields are missing or unsupported.
        """
        fields = ConfigReader(file, config)
        channels = fields.counts("block_out_channels", (320, 640, 1280, 1280))
        levels = len(channels)
        _require_supported(fields, levels)
        layers = fields.per_level("layers_per_block", 2, levels)
        transformers = _TransformerLayers.read(fields, layers)
        has_mid_block, mid_has_attention = _mid_block(fields)
        checked = cls(
            sample_size=_sample_size(fields, old_sample_size),
            in_channels=fields.count("in_channels", 4),
            out_channels=fields.count("out_channels", 4),
            block_out_channels=channels,
            layers_per_block=layers,
            down_has_attention=_block_attention(fields, "down_block_types", levels),
            up_has_attention=_block_attention(fields, "up_block_types", levels),
            mid_has_attention=mid_has_attention,
            has_mid_block=has_mid_block,
            down_transformer_layers=transformers.down,
            mid_transformer_layers=transformers.mid,
            up_transformer_layers=transformers.up,
            # In every published config this is the number of heads, despite its name.
            heads=fields.per_level("attention_head_dim", 8, levels),
            cross_attention_dim=fields.count("cross_attention_dim", 1280),
            text_time=TextTimeConfig.read(fields, time_ids),
            norm_num_groups=fields.divisor("norm_num_groups", 32, of=channels),
            norm_eps=fields.number("norm_eps", 1e-5, above=0),
            flip_sin_to_cos=fields.flag("flip_sin_to_cos", True),
            freq_shift=fields.count("freq_shift", 0, minimum=0),
            time_cond_proj_dim=_time_cond_width(fields),
        )
        for width, heads, has_attention in zip(
            channels, checked.heads, checked._level_has_attention, strict=False
        ):
            if has_attention and width % heads:
                fields.add_error(f"{heads} heads do not divide block_out_channels={width}")
        fields.finish()
        return checked

    @property
    def _level_has_attention(self) -> tuple[bool, ...]:
        """Return for each level whether its down, mid or up block has attention."""
        *finer, coarsest = self.down_has_attention
        down_and_mid = (*finer, coarsest or self.mid_has_attention)
        return tuple(map(any, zip(down_and_mid, reversed(self.up_has_attention), strict=False)))

    @property
    def skip_widths(self) -> tuple[int, ...]:
        """Return the channels of each map that the up blocks read, the finest first."""
        *finer, _ = range(len(self.block_out_channels))
        maps = [
            [width] * (layers + (level in finer))
            for level, (width, layers) in enumerate(
                zip(self.block_out_channels, self.layers_per_block, strict=True)
            )
        ]
        return (self.block_out_channels[0], *(width for widths in maps for width in widths))

    @property
    def downsampling(self) -> int:
        """Return the number by which height and width of the latents must be divisible."""
        return 1 << (len(self.block_out_channels) - 1)


@dataclass(frozen=True)
class _TransformerLayers:
    """It counts the layers of each transformer of the UNet."""

    down: tuple[tuple[int, ...], ...]
    mid: int
    up: tuple[tuple[int, ...], ...]

    @classmethod
    def read(cls, fields: ConfigReader, layers: tuple[int, ...]) -> Self:
        """Read both fields. An entry is one count for all layers of a block, or one per layer.

        Args:
            fields: Of the file.
            layers: Of the down block of each level. An up block has one more.
        """
        name, reverse = "transformer_layers_per_block", "reverse_transformer_layers_per_block"
        down, up = fields.get(name, 1), fields.get(reverse, None)
        entries = tuple(down) if isinstance(down, list | tuple) else (down,) * len(layers)
        if up is None:
            up = entries[::-1]
            if any(isinstance(entry, list | tuple) for entry in entries):
                fields.add_error(f"{reverse} is missing, which a list in {name} needs")
                up = (1,) * len(layers)
        up_entries = tuple(up) if isinstance(up, list | tuple) else (up,)
        coarsest = entries[-1] if entries else 1
        mid = coarsest[0] if isinstance(coarsest, list | tuple) and coarsest else coarsest
        return cls(
            down=_per_layer(fields, name, entries, layers),
            mid=fields.checked_count(name, mid, 0),
            up=_per_layer(fields, reverse, up_entries, tuple(each + 1 for each in layers[::-1])),
        )


def _per_layer(
    fields: ConfigReader, name: str, entries: tuple[object, ...], layers: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return a count for every layer of every block."""
    if len(entries) != len(layers):
        fields.add_error(f"{name} has {len(entries)} entries for {len(layers)} levels")
        return tuple((1,) * count for count in layers)
    counts = []
    for entry, count in zip(entries, layers, strict=True):
        values = tuple(entry) if isinstance(entry, list | tuple) else (entry,) * count
        if len(values) != count:
            fields.add_error(f"{name} has {len(values)} entries for a block of {count} layers")
            values = (1,) * count
        counts.append(tuple(fields.checked_count(name, value, 0) for value in values))
    return tuple(counts)


def _block_attention(fields: ConfigReader, name: str, levels: int) -> tuple[bool, ...]:
    """Return whether the block of each level has attention."""
    direction = "Down" if name.startswith("down") else "Up"
    supported = tuple(block for block in _HAS_ATTENTION if direction in block)
    blocks = fields.get(name, _DEFAULT_BLOCKS[name])
    if not isinstance(blocks, list | tuple) or not blocks:
        fields.add_error(f"{name}={blocks!r} is not a list of blocks")
        return (False,) * levels
    for block in blocks:
        fields.require_one_of(f"{name} entry", block, supported)
    if len(blocks) != levels:
        fields.add_error(f"{name} has {len(blocks)} entries for {levels} levels")
    return tuple(_HAS_ATTENTION.get(str(block), False) for block in blocks)


def _mid_block(fields: ConfigReader) -> tuple[bool, bool]:
    """Return whether there is a mid block, and whether it has attention."""
    name = "mid_block_type"
    # As in diffusers, a missing field is the default, and null is no mid block.
    supported = {"UNetMidBlock2DCrossAttn": True, "UNetMidBlock2D": False, None: False}
    block = fields.choice(name, "UNetMidBlock2DCrossAttn", tuple(supported))
    return block is not None, bool(isinstance(block, str) and supported.get(block))


def _time_cond_width(fields: ConfigReader) -> int | None:
    """Return the width of the guidance scale's embedding. None if the UNet has none."""
    name = "time_cond_proj_dim"
    value = fields.get(name, None)
    if value is None:
        return None
    if (width := fields.checked_count(name, value, 4)) % 2:
        fields.add_error(f"{name}={width} is not an even number")
    return width


def _sample_size(fields: ConfigReader, old_sample_size: int | None) -> tuple[int, int] | None:
    """Return height and width of the latents; the field holds one number for both, or a pair."""
    value = fields.get("sample_size", None)
    if value is None:
        return None
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = (fields.checked_count("sample_size", side) for side in value)
        return height, width
    side = fields.checked_count("sample_size", value)
    if old_sample_size is not None and _is_older_than_0_9(fields):
        # Its default was written into files of models that were trained at twice that size.
        side = max(side, old_sample_size)
    return side, side


def _is_older_than_0_9(fields: ConfigReader) -> bool:
    version = re.match(r"(\d+)\.(\d+)", str(fields.get("_diffusers_version", "")))
    return version is not None and (int(version[1]), int(version[2])) < (0, 9)


def _require_supported(fields: ConfigReader, levels: int) -> None:
    fields.require(
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
        mid_block_scale_factor=1,
        num_attention_heads=None,
        num_class_embeds=None,
        resnet_out_scale_factor=1.0,
        resnet_skip_time_act=False,
        resnet_time_scale_shift="default",
        time_embedding_act_fn=None,
        time_embedding_dim=None,
        time_embedding_type="positional",
        timestep_post_act=None,
    )
    fields.choice("_use_default_values", None, (None, []))
    fields.choice("act_fn", "silu", SILU_NAMES)
    fields.choice("mid_block_only_cross_attention", None, (None, False))
    only_cross = fields.get("only_cross_attention", False)
    if only_cross is not False and only_cross != [False] * levels:
        fields.add_error(f"only_cross_attention={only_cross!r} (supported: False, at every level)")
    # Linear and 1x1 convolutional projections compute the same over channels-last maps, and
    # attention scores are always float32 here.
    fields.ignore("use_linear_projection", "upcast_attention", "dropout")
    fields.ignore("addition_embed_type_num_heads")  # belongs to an embedding refused above

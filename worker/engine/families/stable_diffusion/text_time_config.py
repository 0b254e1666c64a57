"""Read the fields of SDXL's `text_time` embedding in the config of a UNet or a ControlNet."""

from dataclasses import dataclass
from typing import Self

from imagefleet.worker.engine.checkpoint.config_reader import ConfigReader


@dataclass(frozen=True)
class TextTimeConfig:
    """It has the widths of SDXL's `text_time` embedding, which is added to the timestep's.

    It embeds the pooled state of the prompt and some numbers about the image, as its size.
    """

    pooled: int
    """It is the width of the pooled state of the prompt."""
    sinusoids: int
    """It is the width of the embedding of each of the numbers."""
    time_ids: int
    """It is the number of these numbers."""

    @classmethod
    def read(cls, fields: ConfigReader, time_ids: int) -> Self | None:
        """Return the widths. None if the UNet has no such embedding."""
        embed_type = fields.choice("addition_embed_type", None, (None, "text_time"))
        names = ("addition_time_embed_dim", "projection_class_embeddings_input_dim")
        if embed_type is None:
            fields.ignore(*names)
            return None
        sinusoids, width = (fields.count(name) for name in names)
        if (pooled := width - time_ids * sinusoids) < 1:
            fields.add_error(
                f"{names[1]}={width} must be more than {time_ids} x {names[0]}={sinusoids}"
            )
        return cls(pooled, sinusoids, time_ids)

    @property
    def width(self) -> int:
        return self.pooled + self.time_ids * self.sinusoids

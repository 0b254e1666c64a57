"""Name the parts of a checkpoint of Stable Diffusion 3: their folders in diffusers format."""

from collections.abc import Mapping
from typing import Final

CLIPS: Final[Mapping[str, str]] = {"text_encoder": "tokenizer", "text_encoder_2": "tokenizer_2"}
"""It has the tokenizer of each text encoder that is a CLIP."""
T5: Final = "text_encoder_3"
T5_TOKENIZER: Final = "tokenizer_3"
TRANSFORMER: Final = "transformer"
VAE: Final = "vae"

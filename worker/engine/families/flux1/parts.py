"""Name the parts of a checkpoint of FLUX.1: their folders in diffusers format."""

from typing import Final

CLIP: Final = "text_encoder"
CLIP_TOKENIZER: Final = "tokenizer"
T5: Final = "text_encoder_2"
T5_TOKENIZER: Final = "tokenizer_2"
TRANSFORMER: Final = "transformer"
VAE: Final = "vae"

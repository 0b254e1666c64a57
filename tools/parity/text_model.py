"""Let the pipelines of diffusers 0.42 find the final norm of transformers 5's text encoders.

For `clip_skip` they look in `text_encoder.text_model`, which transformers 5 does not have any more:
its attributes lie in the encoder itself.
"""

from transformers import CLIPTextModel


def restore_text_model() -> None:
    """Give `CLIPTextModel` the attribute `text_model`: the encoder itself."""
    CLIPTextModel.text_model = property(lambda encoder: encoder)

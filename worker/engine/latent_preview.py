"""What colour a latent stands for: the cheap way to look at a picture while it is painted.

Goes in: a card of known colours and what the model's autoencoder makes of it. Comes out: a linear
map from latents to colours. It is fitted for each model, so there is no table of known ones.
"""

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.interface import Pictures, Shape


def colour_card(shape: Shape) -> Pictures:
    """`[height, width, 3]`: every pair of red and green, blue in stripes across them."""
    rows, columns = np.mgrid[: shape.height, : shape.width]
    red, green = rows / shape.height, columns / shape.width
    blue = (rows + columns) * 6 // (shape.height + shape.width) % 3 / 2
    return np.asarray(np.stack([red, green, blue], -1) * 255, np.uint8)


def fit_colours(card: Pictures, latents: NDArray[np.float32]) -> NDArray[np.float32]:
    """The least-squares map to colours in 0..1: `[c + 1, 3]`, its last row the constant.

    `card [H, W, 3]`; `latents [h, w, c]`, scaled as the sampler has them.
    """
    height, width, channels = latents.shape
    blocks = card.reshape(height, card.shape[0] // height, width, card.shape[1] // width, 3)
    colours = blocks.mean(axis=(1, 3)).reshape(-1, 3) / 255
    known = np.concatenate(
        [latents.reshape(-1, channels), np.ones((height * width, 1), np.float32)], axis=1
    )
    return np.asarray(np.linalg.lstsq(known, colours, rcond=None)[0], np.float32)

"""Fit a linear map from latents to RGB, for cheap previews of unfinished images.

Input: a colour chart and its latents from the model's autoencoder. Output: the RGB factors. They
are fitted to each model, so no table of known models is needed.
"""

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.contract.interface import ImageArray, Shape


def colour_chart(shape: Shape) -> ImageArray:
    """Return a chart with all pairs of red and green, and blue in diagonal stripes."""
    rows, columns = np.mgrid[: shape.height, : shape.width]
    red, green = rows / shape.height, columns / shape.width
    blue = (rows + columns) * 6 // (shape.height + shape.width) % 3 / 2
    return np.asarray(np.stack([red, green, blue], -1) * 255, np.uint8)


def fit_rgb_factors(chart: ImageArray, latents: NDArray[np.float32]) -> NDArray[np.float32]:
    """Fit the least-squares map from latents to RGB in 0..1.

    Args:
        chart: `[H, W, 3]`.
        latents: `[h, w, c]` of the chart, multiplied by the autoencoder's scaling factor.

    Returns:
        `[c + 1, 3]`; the last row is the constant.
    """
    height, width, channels = latents.shape
    blocks = chart.reshape(height, chart.shape[0] // height, width, chart.shape[1] // width, 3)
    colours = blocks.mean(axis=(1, 3)).reshape(-1, 3) / 255
    features = np.concatenate(
        [latents.reshape(-1, channels), np.ones((height * width, 1), np.float32)], axis=1
    )
    return np.asarray(np.linalg.lstsq(features, colours, rcond=None)[0], np.float32)

"""The captions on which a model is judged.

They have the first phrasing and are the same on every machine. This module needs only numpy and
Pillow, so that every engine's test program can import it.
"""

from __future__ import annotations

import numpy as np

from tools.train_shapes.captions import plain_caption
from tools.train_shapes.scenes import sample_scene, split


def evaluation_prompts(count: int, *, held_out: bool, seed: int = 0) -> list[str]:
    """Return captions of held-out scenes, or, for comparison, of scenes from the training set."""
    rng = np.random.default_rng((seed, 3, int(held_out)))
    among = split(held_out=held_out)
    return [plain_caption(sample_scene(rng, among)) for _ in range(count)]

"""Which captions a model is asked for when it is judged.

Goes in: a number, a side of the split and a seed. Comes out: captions of the first
phrasing, the same on every machine. Needs numpy and Pillow only, so that any engine's
harness can import it.
"""

from __future__ import annotations

import numpy as np

from tools.train_shapes.captions import plain_caption
from tools.train_shapes.scenes import sample_scene, split


def evaluation_prompts(count: int, *, held_out: bool, seed: int = 0) -> list[str]:
    """Captions of scenes that training never saw (or, for comparison, of those it may have)."""
    rng = np.random.default_rng((seed, 3, int(held_out)))
    among = split(held_out=held_out)
    return [plain_caption(sample_scene(rng, among)) for _ in range(count)]

"""Define what the programs ask of the ControlNets of a model."""

from typing import Protocol

import jax

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.sampling.arrays import ControlImages


class ControlNets(Protocol):
    """It describes the ControlNets that jobs may use. It is hashable and holds no weights."""

    @property
    def count(self) -> int:
        """Return how many there are."""

    @property
    def width(self) -> int:
        """Return the number of channels of the embedding of a control image."""

    def embed(self, weights: Params, images: ControlImages) -> jax.Array:
        """Embed each slot's control image with its own net.

        Args:
            weights: They are those of the denoiser, with those of the nets.
            images: They are the control images of the batch.

        Returns:
            `[b, h, w, width]`, in the dtype of the programs. It stays the same over all steps.
        """

"""Define what the programs ask of a family of models at each stage.

`DiffusionPrograms` has the general loop. It knows neither the network that denoises nor the text
encoders: those of each family are behind this protocol. A denoiser is hashable and holds no
weights, so that it is a static argument of a compiled program.

Axes: b slots, 2 the negative prompt and the prompt, h w latent size, c latent channels.
"""

from typing import Any, Protocol

import jax

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.contract.image_use import ImageLimits
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Conditions, Weights
from imagefleet.worker.engine.sampling.image_input import ImageInput


class TextEncoding(Protocol):
    """It runs a text encoder that takes so long that its results are kept for further images.

    It is hashable and holds no weights.
    """

    @property
    def width(self) -> int:
        """Return the width of the states of a token."""

    @property
    def texts(self) -> int:
        """Return how many texts of a slot are encoded: the negative prompt and the prompt, 2, or
        the prompt alone, 1."""

    def __call__(self, weights: Weights, ids: jax.Array) -> jax.Array:
        """Encode texts, int32 `[n, t]`, as `[n, t, width]` in the dtype of the programs."""


class Denoiser(Protocol):
    """It has the text encoders and the denoising network of a model."""

    @property
    def image_input(self) -> ImageInput:
        """Return what the network gets beside the noisy latents."""

    @property
    def image_limits(self) -> ImageLimits | None:
        """Return for which images there may be a reference image. None: for those of all sizes, or
        the network gets none."""

    @property
    def text_encoding(self) -> TextEncoding | None:
        """Return what makes `text_states` of the inputs. None: they have none, and
        `encode_prompts` runs the text encoders."""

    @property
    def has_guidance(self) -> bool:
        """Return whether guidance may apply. False of a model that never reads negative prompts:
        then `guidance` makes no difference to `predict`."""

    @property
    def limits_guidance(self) -> bool:
        """Return whether jobs may have `cfg_normalization` and `cfg_truncation`."""

    @property
    def true_guidance(self) -> bool:
        """Return whether jobs may have `true_cfg_scale`. Then `guidance_scale` is an input of the
        network."""

    @property
    def has_large_products(self) -> bool:
        """Return whether the network mostly multiplies tokens by large matrices, as transformers
        do."""

    def encode_prompts(self, weights: Weights, inputs: BatchInputs, height: int, width: int) -> Any:
        """Encode the prompts of a batch for images of this size in pixels.

        Returns:
            The text as the network attends to it: a tree of arrays `[b, 2, …]` that stays the same
            over all steps.
        """

    def predict(
        self,
        weights: Params,
        conditions: Conditions,
        latents: jax.Array,
        timestep: jax.Array,
        *,
        guidance: bool,
        reference: bool = False,
    ) -> jax.Array:
        """Run the network on noisy latents, and apply guidance.

        Args:
            weights: Of the network.
            conditions: Of the batch; `text` is from `encode_prompts`.
            latents: float32 `[b, h, w, c]`, scaled as the network takes them.
            timestep: float32 `[b]`.
            guidance: False if no slot uses guidance. The network then runs on the prompts alone.
            reference: Whether a slot has a reference image.

        Returns:
            The prediction, float32 `[b, h, w, c]`.
        """

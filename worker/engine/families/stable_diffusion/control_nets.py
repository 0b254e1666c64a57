"""Run the ControlNets that the slots of a batch choose.

Input: their weights, and the arrays of a batch. Output: what they add to the maps of the UNet. A
net is skipped while no slot uses it. Otherwise it runs on all slots, and a slot that does not use
it adds zeros, so that an image depends on its own slot only.

Axes: b slots, 2 the negative prompt and the prompt, r rows of the UNet's batch, h w latent size, c
channels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import ArrayLike, DTypeLike

from imagefleet.worker.engine.checkpoint.weights import Params
from imagefleet.worker.engine.families.stable_diffusion.control_net import ControlNet
from imagefleet.worker.engine.families.stable_diffusion.unet import AddedMaps
from imagefleet.worker.engine.families.stable_diffusion.unet_encoder import PromptContext
from imagefleet.worker.engine.sampling.arrays import ControlImages

UNET = "unet"
NETS = "controlnets"
"""The weights of a denoiser with ControlNets have these keys."""


class ControlledContext(NamedTuple):
    """It has the prompts as the UNet and the ControlNets attend to them."""

    unet: PromptContext
    nets: tuple[PromptContext, ...]


@dataclass(frozen=True)
class StableDiffusionControlNets:
    """It has the structure of the nets; their weights are arguments."""

    graphs: tuple[nnx.GraphDef[nnx.Module], ...]
    width: int
    dtype: DTypeLike

    @property
    def count(self) -> int:
        return len(self.graphs)

    def embed(self, weights: Params, images: ControlImages) -> jax.Array:
        """Embed each slot's control image with its own net, `[b, h, w, width]`."""
        pixels = (images.pixels.astype(jnp.float32) / 255).astype(self.dtype)
        made = jnp.zeros(self._map_shape(weights, pixels), self.dtype)
        for number, net in enumerate(self._nets(weights)):
            mine = images.net == number
            embed = partial(_embed_mine, net.controlnet_cond_embedding, pixels, mine)
            made = jax.lax.cond(mine.any(), embed, _unchanged, made)
        return made

    def encode_prompts(
        self,
        weights: Params,
        scales: jax.Array,
        hidden: jax.Array,
        pooled: jax.Array | None,
        time_ids: ArrayLike,
    ) -> tuple[PromptContext, ...]:
        """Return the prompts as each net attends to them; zeros of a net that no slot uses.

        Args:
            weights: Of the denoiser.
            scales: Of the nets, float32 `[b, nets]`.
            hidden: States of the text encoders, `[b, 2, n, d]`.
            pooled: The pooled states, `[b, 2, p]`, if the model has them.
            time_ids: The numbers about the image.
        """
        contexts = []
        for number, net in enumerate(self._nets(weights)):
            project = partial(net.project_context, hidden, pooled, time_ids)
            empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(project))
            used = (scales[:, number] != 0).any()
            contexts.append(jax.lax.cond(used, project, lambda empty=empty: empty))
        return tuple(contexts)

    def run(
        self,
        weights: Params,
        scales: jax.Array,
        latents: jax.Array,
        timesteps: jax.Array,
        prompts: Sequence[PromptContext],
        control_map: jax.Array,
    ) -> AddedMaps:
        """Return the sum of what the nets of each slot add.

        Args:
            weights: Of the denoiser.
            scales: Of the nets in this step, float32 `[b, nets]`. 0: the slot does not use the net.
            latents: `[b r, h, w, c]`, in the dtype of the nets.
            timesteps: float32 `[b r]`.
            prompts: For each net, with the leading axis b r.
            control_map: From `embed`, `[b, h, w, width]`.
        """
        rows = len(latents) // len(scales)
        control_map = jnp.repeat(control_map, rows, axis=0)
        nets = self._nets(weights)
        outputs = jax.eval_shape(nets[0], latents, timesteps, prompts[0], control_map)
        added = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), outputs)
        for number, net in enumerate(nets):
            scale = jnp.repeat(scales[:, number], rows)
            run = partial(net, latents, timesteps, prompts[number], control_map)
            add = partial(_add_scaled, run, scale)
            added = jax.lax.cond((scale != 0).any(), add, _unchanged, added)
        return cast(AddedMaps, added)

    def _nets(self, weights: Params) -> list[ControlNet]:
        pairs = zip(self.graphs, weights[NETS], strict=True)
        return [cast(ControlNet, nnx.merge(graph, params)) for graph, params in pairs]

    def _map_shape(self, weights: Params, pixels: jax.Array) -> tuple[int, ...]:
        embedding = self._nets(weights)[0].controlnet_cond_embedding
        return tuple(jax.eval_shape(embedding, pixels).shape)


def _unchanged(arrays: Any) -> Any:
    return arrays


def _embed_mine(
    embedding: Callable[[jax.Array], jax.Array], pixels: jax.Array, mine: jax.Array, made: jax.Array
) -> jax.Array:
    """Put the embeddings of some slots among those made."""
    return jnp.where(mine[:, None, None, None], embedding(pixels), made)


def _add_scaled(run: Callable[[], AddedMaps], scale: jax.Array, added: AddedMaps) -> AddedMaps:
    """Add what a net makes, times `scale [b r]`. Where that is 0, nothing is added."""
    scale = scale[:, None, None, None]

    def add(total: jax.Array, more: jax.Array) -> jax.Array:
        return total + jnp.where(scale == 0, 0, more * scale.astype(more.dtype))

    return cast(AddedMaps, jax.tree.map(add, added, run()))

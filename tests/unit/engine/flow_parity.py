"""Load tiny checkpoints of flow models with the results of PyTorch diffusers.

`tools/make_parity_fixtures.py` wrote the results. The weights are drawn by their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import WeightMapping
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.loading.build_engine import load_networks
from imagefleet.worker.engine.loading.find_checkpoint import open_checkpoint
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitLatents, Weights
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.coefficients import CoefficientTable
from tests.unit.engine.parity import BEGIN, DECODE, FLOAT32_ON_CPU, STEP, stored_shapes
from tools.parity.flow.checkpoint import write_weights

MAX_STEPS: Final = 9
ENCODE_TEXT: Final = jax.jit(lambda encoding, *arguments: encoding(*arguments), static_argnums=0)
STEP_UNGUIDED: Final = jax.jit(
    lambda programs, *arguments: programs.step(*arguments, guidance=False), static_argnums=0
)


def write_drawn_weights(folder: Path) -> FamilyModel:
    """Draw and write the weights that our networks have, for the configs in a folder."""
    model = read_configs(CheckpointFiles(folder))
    for name, network in model.networks().items():
        write_weights(folder, name, stored_shapes(network))
    return model


def drawn_block(kind: type[nnx.Module], config: Any, folder: Path) -> Any:
    """Return a block, or another part with names of weights, in float32. Its drawn weights are
    written to a folder and loaded from there."""
    network = abstract_network(kind, config)
    (folder / "transformer").mkdir()
    write_weights(folder, "transformer", stored_shapes(network))
    files = CheckpointFiles(folder).open_weights(["transformer"])["transformer"]
    weights = WeightMapping("transformer", network, files).load(
        np.dtype(np.float32), Placement.of(1)
    )
    return nnx.merge(nnx.graphdef(network), weights)


@dataclass(frozen=True)
class FlowOracle:
    """A checkpoint loaded by our engine."""

    files: CheckpointFiles
    model: FamilyModel
    programs: DiffusionPrograms
    weights: Weights
    shape: Shape

    @classmethod
    def read(cls, folder: Path, shape: Shape, options: ModelOptions | None = None) -> "FlowOracle":
        options = options or ModelOptions()
        files = open_checkpoint(folder, options.left_out)
        model = read_configs(files)
        programs, weights = load_networks(
            files, model, Placement.of(1), FLOAT32_ON_CPU, options=options
        )
        return cls(files, model, programs, weights, shape)

    def in_bfloat16(self) -> "FlowOracle":
        """Return the model in bfloat16, which is the default on TPU."""
        half = Workload(dtype=np.dtype(jnp.bfloat16), platform="cpu", device_kind="cpu")
        programs, weights = load_networks(self.files, self.model, Placement.of(1), half)
        return replace(self, programs=programs, weights=weights)

    def empty(self, slots: int) -> EmptyBatch:
        lengths = self.model.load_tokenizer(self.files).lengths
        return EmptyBatch.of(self.programs, slots, lengths, MAX_STEPS)

    def tokens(self, pairs: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], ...]:
        """Return the ids of negative prompts and prompts, `[b, 2, 1, n]` for each encoder."""
        tokenizer = self.model.load_tokenizer(self.files)
        encoded = [tokenizer(list(pair)) for pair in pairs]
        return tuple(
            np.stack([each[encoder] for each in encoded])[:, :, None]
            for encoder in range(len(tokenizer.lengths))
        )

    def with_states(self, inputs: BatchInputs) -> BatchInputs:
        """Return inputs with the hidden states of their texts, if `begin` takes them."""
        if (encoding := self.programs.denoiser.text_encoding) is None:
            return inputs
        ids = inputs.tokens[0][:, -encoding.texts :, 0]  # [b, 2, t]
        states = ENCODE_TEXT(encoding, self.weights, ids.reshape(-1, ids.shape[-1]))
        return inputs._replace(text_states=states.reshape(*ids.shape, -1))

    def images(
        self,
        pairs: Sequence[Sequence[str]],
        table: CoefficientTable,
        noise: NDArray[np.float32],
        guidance: float,
        init_latents: InitLatents | None = None,
        *,
        beside_guided: bool = False,
        true_guidance: float = 1.0,
    ) -> NDArray[np.int_]:
        """Generate an image of each pair, uint8 values, from torch's noise `[b, c, h, w]`.

        With init latents, they are mixed with the noise as `table` says. `beside_guided` runs the
        step with guidance, whatever the scale. `true_guidance` is `true_cfg_scale`.
        """
        slots, start = len(pairs), np.moveaxis(noise, 1, -1)
        empty = self.empty(slots)
        inputs = empty.inputs()._replace(
            tokens=self.tokens(pairs),
            guidance=np.full(slots, guidance, np.float32),
            rows=np.stack([table.padded(empty.calls)] * slots),
            calls=np.full(slots, len(table.rows), np.int32),
        )
        if inputs.true_guidance is not None:
            inputs.true_guidance[:] = true_guidance
        latents = empty.init_latents(self.shape) if init_latents is None else init_latents
        inputs = self.with_states(inputs)
        conditions, state = BEGIN(self.programs, self.weights, inputs, latents)
        conditions = conditions._replace(noise=start)
        if init_latents is not None:
            of_image, of_noise = (np.float32(factor) for factor in table.start)
            start = of_image * np.asarray(init_latents.latents) + of_noise * start
        state = state._replace(latents=jax.device_put(start, state.latents.sharding))
        scale = guidance if inputs.true_guidance is None else true_guidance
        is_guided = beside_guided or scale > self.model.unguided_scale
        step = STEP if is_guided else STEP_UNGUIDED
        for _ in table.rows:
            state, _ = step(self.programs, self.weights.denoiser, conditions, state)
        decoded: Any = DECODE(self.programs, self.weights, state)
        return np.asarray(decoded.images, int)

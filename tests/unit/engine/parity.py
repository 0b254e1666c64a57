"""Load the checkpoints in tests/fixtures/parity with the results of PyTorch diffusers.

`tools/make_parity_fixtures.py` wrote them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
from flax import nnx
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import load_file

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.denoiser import StableDiffusionDenoiser
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from imagefleet.worker.engine.loading.build_engine import load_networks
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.memory_check import Workload
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling.arrays import BatchInputs, InitLatents, Weights
from imagefleet.worker.engine.sampling.programs import DiffusionPrograms
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from imagefleet.worker.engine.tokenizers.prompt_tokenizer import PromptTokenizer
from tools.parity.known.checkpoints import KnownCheckpoint
from tools.parity.known.write import write_configs, write_weights

FOLDER = Path(__file__).parents[2] / "fixtures" / "parity"
PROMPTS = ["a red circle on blue", "Zwölf  Bücher, 3 for €5!", ""]
BEGIN: Final = jax.jit(DiffusionPrograms.begin, static_argnums=0)
STEP: Final = jax.jit(DiffusionPrograms.step, static_argnums=0)
DECODE: Final = jax.jit(DiffusionPrograms.decode, static_argnums=0)
"""Methods compiled once for all checkpoints with the same networks."""
FLOAT32_ON_CPU: Final = Workload(dtype=np.dtype(np.float32), platform="cpu", device_kind="cpu")
SPEC: Final = ImageSpec(
    prompt="a red circle on blue",
    negative_prompt="blue",
    seed=7,
    num_inference_steps=4,
    guidance_scale=3.0,
)


@dataclass(frozen=True)
class Oracle:
    """A checkpoint loaded by our engine, and PyTorch's results for it."""

    files: CheckpointFiles
    model: StableDiffusion
    programs: DiffusionPrograms
    weights: Weights
    answers: dict[str, NDArray[Any]]

    @classmethod
    def read(cls, name: str) -> "Oracle":
        folder = FOLDER / name
        files = CheckpointFiles(folder)
        model = read_model(files)
        programs, weights = load_in_float32(files, model)
        return cls(files, model, programs, weights, load_file(folder / "expected.safetensors"))

    @property
    def configs(self) -> Configs:
        return self.model.configs

    @property
    def denoiser(self) -> StableDiffusionDenoiser:
        return denoiser_of(self.programs)

    def load_tokenizer(self) -> PromptTokenizer:
        return self.model.load_tokenizer(self.files)

    def image(self, key: str) -> NDArray[Any]:
        """Return a result of PyTorch's layout `[…, c, h, w]` with channels last."""
        return np.moveaxis(self.answers[key], -3, -1)


def read_model(files: CheckpointFiles) -> StableDiffusion:
    """Read the configs of a checkpoint of Stable Diffusion."""
    return StableDiffusion(Configs.read(files))


def load_in_float32(
    files: CheckpointFiles, model: FamilyModel | None = None, options: ModelOptions | None = None
) -> tuple[DiffusionPrograms, Weights]:
    """Load the networks of a checkpoint on one device. No model: as its configs say."""
    model = model or read_model(files)
    return load_networks(files, model, Placement.of(1), FLOAT32_ON_CPU, options=options)


def denoiser_of(programs: DiffusionPrograms) -> StableDiffusionDenoiser:
    assert isinstance(programs.denoiser, StableDiffusionDenoiser)
    return programs.denoiser


def token_ids(tokenizer: PromptTokenizer, pairs: Iterable[Sequence[str]]) -> NDArray[np.int32]:
    """Return the ids of negative prompts and prompts, `[b, 2, encoders, n]`."""
    return np.stack([np.stack(tokenizer(list(pair)), axis=1) for pair in pairs])


def by_encoder(ids: NDArray[np.int32]) -> tuple[NDArray[np.int32], ...]:
    """Return ids `[b, 2, encoders, n]` as the programs take them: `[b, 2, 1, n]` of each."""
    return tuple(ids[:, :, encoder, None] for encoder in range(ids.shape[2]))


def worst(ours: ArrayLike, theirs: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest value."""
    mine = np.asarray(ours, np.float64)
    assert mine.shape == theirs.shape
    return float(np.abs(mine - theirs).max() / np.abs(theirs).max())


def generate_with_noise_of_torch(
    oracle: Oracle,
    tokens: NDArray[np.int32],
    scheduler: str,
    negatives: Sequence[str],
    clip_skip: Sequence[int] = (0, 0),
    guidance_rescale: Sequence[float] = (0, 0),
) -> NDArray[np.int_]:
    """Generate the two images of `tools/parity/answers.py`: 6 steps, guidance 3, torch's noise."""
    programs, weights = oracle.programs, oracle.weights
    table = SCHEDULERS[scheduler](oracle.configs.noise, 6, 0)
    inputs = BatchInputs(
        tokens=by_encoder(tokens),
        has_negative=np.array([negative != "" for negative in negatives]),
        clip_skip=np.array(clip_skip, np.int32),
        key=np.zeros((2, 2), np.uint32),
        image_index=np.zeros(2, np.uint32),
        initial_mix=np.ones((2, 2), np.float32),
        guidance=np.full(2, 3, np.float32),
        guidance_rescale=np.array(guidance_rescale, np.float32),
        rows=np.stack([table.padded(7)] * 2),
        calls=np.full(2, len(table.rows), np.int32),
    )
    init_latents = InitLatents(np.zeros((2, 8, 8, 4)), np.ones((2, 8, 8, 1), bool))
    conditions, state = BEGIN(programs, weights, inputs, init_latents)
    noise = oracle.image("unet.latents") * np.float32(table.init_noise_sigma)
    # With the sharding of the latents after a step, both steps are one program.
    state = state._replace(latents=jax.device_put(noise, state.latents.sharding))
    for _ in range(7):
        state, _ = STEP(programs, weights.denoiser, conditions, state)
    return np.asarray(DECODE(programs, weights, state).images, int)


def load_older(cache_dir: Path, **options: Any) -> DiffusionEngine:
    """Load the checkpoint `older` with options of `load_engine`."""
    engine = load_engine(str(FOLDER / "older"), cache_dir=cache_dir, **options)
    assert isinstance(engine, DiffusionEngine)
    return engine


def load_program(engine: DiffusionEngine, name: str) -> ExecutableCache:
    """Load or compile one program of the engine's first shape, and return the engine's cache."""
    shape, compiler, factors = engine.info.shapes[0], engine._compiler, engine._rgb_factors
    lower = compiler.lowerings(shape, factors)[name]
    cache, inputs = engine._executable_cache, compiler.inputs(shape, factors)
    cache.load_or_compile(f"{shape}/{name}", inputs, lower)
    return cache


def stored_shapes(model: nnx.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight of a network as a checkpoint stores it."""
    return {entry.key: entry.stored_shapes[0] for entry in weight_entries(model)}


def lora_options(scales: Mapping[str, float]) -> tuple[LoraOption, ...]:
    """Return files of `loras`, by their names, with scales."""
    return tuple(
        LoraOption(name=name, path=str(FOLDER / "loras" / f"{name}.safetensors"), scale=scale)
        for name, scale in scales.items()
    )


def write_known(folder: Path, checkpoint: KnownCheckpoint) -> CheckpointFiles:
    """Write a well-known checkpoint, tiny, with the weights that our networks have."""
    write_configs(folder, checkpoint)
    files = CheckpointFiles(folder)
    for network, model in read_model(files).networks().items():
        write_weights(folder, checkpoint, network, stored_shapes(model))
    return files

"""Compile for a TPU host that is not here: `compile_for_host.py WHAT HOST [ARGUMENT]`.

WHAT is `layers`, `wide-heads`, `convolutions`, `transformer`, `flow-blocks`, `memory`,
`published-step` with the name of a model, `programs` or `stream-programs` with the number of
devices a copy, `programs-with-loras`, which take long prompts too, `known-programs` with the name
of a well-known checkpoint, or `wrong` with the name of a wrong choice. The output is one line of
JSON: for each thing that was compiled, the compiler's error or null. libtpu must be installed. It
stays loaded, so this script runs in a process of its own.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
from imagefleet.worker.engine.compile.fingerprint import environment
from imagefleet.worker.engine.compile.program_compiler import Lower
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.families.flux2_klein.blocks import DoubleBlock, SingleBlock
from imagefleet.worker.engine.families.flux2_klein.configs import TEXT_LENGTH
from imagefleet.worker.engine.families.flux2_klein.transformer import rotation_of
from imagefleet.worker.engine.families.flux2_klein.transformer_config import TransformerConfig
from imagefleet.worker.engine.families.stable_diffusion.attention_layers import attention_layers
from imagefleet.worker.engine.families.stable_diffusion.family import STABLE_DIFFUSION
from imagefleet.worker.engine.families.stable_diffusion.model import StableDiffusion
from imagefleet.worker.engine.families.stable_diffusion.unet_transformer import (
    ContextKV,
    TransformerBlock,
)
from imagefleet.worker.engine.kernels import attention as attention_module
from imagefleet.worker.engine.kernels.attention import attention
from imagefleet.worker.engine.kernels.attention_backend import AttentionSpec
from imagefleet.worker.engine.kernels.feature_map import FeatureMap
from imagefleet.worker.engine.kernels.feed_forward_spec import KERNEL_NAME as FEED_FORWARD
from imagefleet.worker.engine.kernels.head_packing import KERNEL_NAME as PACKED_ATTENTION
from imagefleet.worker.engine.kernels.head_packing import HeadPacking
from imagefleet.worker.engine.kernels.large_convolution_spec import (
    KERNEL_NAME,
    NARROW_KERNEL_NAME,
)
from imagefleet.worker.engine.kernels.packed_attention import attend_packed, packing_of
from imagefleet.worker.engine.kernels.wide_attention_kernel import KERNEL_NAME as WIDE_ATTENTION
from imagefleet.worker.engine.loading.compile_ahead import AbstractModel
from imagefleet.worker.engine.networks.blocks import (
    GroupNorm,
    ResnetBlock,
    Upsample,
    conv,
    normalize_and_convolve,
)
from imagefleet.worker.engine.networks.modulation import Modulated
from imagefleet.worker.engine.networks.row_split import compute_by_rows, compute_together
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS
from imagefleet.worker.engine.placement.tpu_topology import placement_of
from tools.parity.flow.published import FLOW_MODELS
from tools.parity.known.checkpoints import KNOWN
from tools.parity.known.write import write_configs as write_known_configs
from tools.parity.published import PUBLISHED
from tools.tpu.lora_file import write_lora
from tools.tpu.models import SHAPES, model_of, write_configs
from tools.tpu.programs import BFLOAT16, lower_programs

SMALL_SHAPE: Final = Shape(height=32, width=64)
"""Its 2,048 pixels, and the 512 of the second level of the UNet, are multiples of 128, as the
attention kernel needs them. Above 1,024 keys the kernel takes several blocks of them: its code for
one block accepts heads of 160, its code for several refuses them."""
_HEADS: Final = 2
_LEVELS: Final = {1: (160, 40), 2: (80, 64)}
"""The head sizes of both levels of the UNet, by devices a copy: together those that the published
models have."""
BY_XLA: Final = "XLA computes it"
_CLIP: Final = {
    "hidden_size": 64 * _HEADS,
    "intermediate_size": 128,
    "num_attention_heads": _HEADS,
    "num_hidden_layers": 1,
}
WRONG: Final[dict[str, tuple[str, Any]]] = {
    "unpadded heads": ("_pad_head", lambda x: x),
    "kernel in bfloat16": ("MULTIPLIES_FLOAT32_ONLY", ()),
}
"""By name, what a wrong choice replaces in `attention`, and by what."""


def layers(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every distinct attention layer of the published models in bfloat16, one in float32."""
    placement = placement_of(host, devices=1)
    specs = {
        spec
        for model, shape in SHAPES.items()
        for spec in attention_layers(model_of(model).configs, shape, BFLOAT16)
    }
    for spec in sorted(specs, key=str):
        yield str(spec), partial(_compile_layer, spec, packing_of(spec), placement)
    finest = AttentionSpec(queries=4096, keys=4096, heads=8, head_dim=40, dtype=jnp.float32)
    yield str(finest), partial(_compile_layer, finest, HeadPacking(heads=8, head_dim=40), placement)


def _compile_layer(spec: AttentionSpec, packing: HeadPacking | None, placement: Placement) -> None:
    def abstract(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((2, *shape), spec.dtype, sharding=placement.replicated)

    if packing is None:
        compute = jax.jit(partial(attention, heads=spec.heads, causal=spec.causal))
        channels = spec.heads * spec.head_dim
        lengths = (spec.queries, spec.keys, spec.keys)
        operands = [abstract(length, channels) for length in lengths]
    else:
        compute = jax.jit(partial(attend_packed, packing=packing))
        rows = packing.heads * packing.rows_per_head
        operands = [
            abstract(packing.lanes, spec.queries),
            abstract(spec.keys, packing.lanes),
            abstract(rows, spec.keys),
        ]
    with jax.set_mesh(placement.mesh):
        lowered = compute.lower(*operands)
    lowered.compile()


def wide_heads(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield attention layers with a mask and heads of 128, by the number of tokens: of Z-Image at
    1024x1024, and of a text and an image whose tokens fill no whole block. The last is in float32,
    too. Then one with heads of 64, of Stable Diffusion 3."""
    placement = placement_of(host)
    for length, width, dtype in (
        (4608, 128, BFLOAT16),
        (4128 + 32, 128, BFLOAT16),
        (4128 + 32, 128, np.float32),
        (4429, 64, BFLOAT16),
    ):
        name = f"{length} in {np.dtype(dtype).name}"
        yield name, partial(_compile_wide_heads, length, width, np.dtype(dtype), placement)


def _compile_wide_heads(
    length: int, width: int, dtype: np.dtype[Any], placement: Placement
) -> None:
    """Compile a layer for one sequence on each device.

    Raises:
        AssertionError: The program does not have the kernel.
    """
    shape = (placement.mesh.size, length, 2 * width)
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=placement.by_slot)
    mask = jax.ShapeDtypeStruct(shape[:2], jnp.bool_, sharding=placement.by_slot)
    with jax.set_mesh(placement.mesh):
        compute = jax.jit(lambda x, mask: attention(x, x, x, heads=2, mask=mask))
        compiled = compute.lower(x, mask).compile()
    assert WIDE_ATTENTION in (compiled.as_text() or ""), BY_XLA


def convolutions(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield layers of the published models that the kernel computes, small maps but for v5e."""
    layers: list[tuple[str, Callable[[], nnx.Module], tuple[int, int]]] = [
        ("block", partial(_resnet, 128, 128), (512, 128)),
        ("block with other channels", partial(_resnet, 512, 256), (256, 512)),
        ("upsampling", partial(Upsample, 256), (256, 256)),
        ("upsampling to a large map", partial(Upsample, 512), (64, 512)),
    ]
    if not host.startswith("v5e"):
        layers.append(("small block", partial(_resnet, 320, 640), (32, 320)))
        layers.append(("upsampling of a small map", partial(Upsample, 640), (16, 640)))
    for name, make, size in layers:
        yield name, partial(_compile_convolution, make, *size, placement_of(host))
    for name, last, size in (
        ("last layer of a decoder", partial(_LastLayer, 128, 3), (512, 128)),
        ("last layer of a UNet", partial(_LastLayer, 320, 4), (128, 320)),
    ):
        compile_last = partial(_compile_convolution, last, *size, placement_of(host))
        yield name, partial(compile_last, kernel=NARROW_KERNEL_NAME)


class _LastLayer(nnx.Module):
    """It is the last norm and convolution of a network."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        self.norm = GroupNorm(channels_in, 32, 1e-6)
        self.conv = conv(channels_in, channels_out)

    def __call__(self, x: FeatureMap) -> FeatureMap:
        return normalize_and_convolve(self.norm, self.conv, x)


def _resnet(channels_in: int, channels_out: int) -> ResnetBlock:
    return ResnetBlock(channels_in, channels_out, groups=32, epsilon=1e-6)


def _compile_convolution(
    make: Callable[[], nnx.Module],
    side: int,
    channels: int,
    placement: Placement,
    *,
    kernel: str = KERNEL_NAME,
) -> None:
    """Compile a layer for one image on each device.

    Raises:
        AssertionError: The program does not have the kernel.
    """
    graph, state = nnx.split(nnx.eval_shape(make))
    weights = jax.tree.map(
        lambda weight: jax.ShapeDtypeStruct(weight.shape, BFLOAT16, sharding=placement.replicated),
        nnx.to_pure_dict(state),
    )
    shape = (placement.mesh.size, side, side, channels)
    x = jax.ShapeDtypeStruct(shape, BFLOAT16, sharding=placement.by_slot)

    def compute(weights: Any, x: jax.Array) -> FeatureMap:
        layer: Any = nnx.merge(graph, weights)
        result: FeatureMap = layer(x if isinstance(layer, Upsample) else FeatureMap(x))
        return result

    with jax.set_mesh(placement.mesh):
        compiled = jax.jit(compute).lower(weights, x).compile()
    assert kernel in (compiled.as_text() or ""), BY_XLA


def transformer(host: str, devices_per_copy: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a transformer block of SDXL (v6e) or Stable Diffusion 1, with both of its kernels.

    If two devices share the weights, they compute different rows. "heads" is a block whose heads
    they split, with the kernel for attention.
    """
    placement = placement_of(host, model=int(devices_per_copy))
    sizes = (640, 10, 2048) if host.startswith("v6e") else (320, 8, 4096)
    run = compute_by_rows if placement.model > 1 else compute_together
    yield "block", partial(_compile_transformer, *sizes, placement, run, FEED_FORWARD)
    if placement.model > 1:
        yield "heads", partial(_compile_transformer, 640, 10, 1024, placement, compute_together, "")


def _compile_transformer(
    channels: int,
    heads: int,
    pixels: int,
    placement: Placement,
    run: Callable[..., jax.Array],
    kernel: str,
) -> None:
    """Compile a block for two sequences on each copy of the weights.

    Raises:
        AssertionError: The program does not have `kernel`, or no kernel for attention.
    """
    graph, state = nnx.split(nnx.eval_shape(partial(TransformerBlock, channels, 2048, heads)))
    weights = jax.tree.map(
        lambda weight: jax.ShapeDtypeStruct(
            weight.shape, BFLOAT16, sharding=placement.weight_sharding(weight.shape)
        ),
        nnx.to_pure_dict(state),
    )

    def abstract(length: int) -> jax.ShapeDtypeStruct:
        shape = (2 * placement.data, length, channels)
        return jax.ShapeDtypeStruct(shape, BFLOAT16, sharding=placement.by_slot)

    def compute(weights: Any, x: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        layer: Any = nnx.merge(graph, weights)
        return run(lambda layer, x, context: layer(x, context), layer, x, ContextKV(key, value))

    with jax.set_mesh(placement.mesh):
        lowered = jax.jit(compute).lower(weights, abstract(pixels), abstract(77), abstract(77))
    text = lowered.compile().as_text() or ""
    calls = [line for line in text.splitlines() if "tpu_custom_call" in line]
    # Of self-attention and of cross-attention.
    assert sum(PACKED_ATTENTION in call for call in calls) == 2, BY_XLA
    assert kernel in text, BY_XLA


def flow_blocks(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield blocks of FLUX.2 klein 4B for an image of 1024x1024: a double one, and a single one
    with a reference image, whose tokens have a mask."""
    for kind, reference in ((DoubleBlock, False), (SingleBlock, True)):
        block = partial(_compile_flow_block, kind, placement_of(host), reference=reference)
        yield kind.__name__, block


def _compile_flow_block(
    kind: type[DoubleBlock | SingleBlock], placement: Placement, *, reference: bool
) -> None:
    """Compile a block for one sequence on each device.

    Raises:
        AssertionError: The program does not have the kernel.
    """
    config = TransformerConfig.from_json(FLOW_MODELS["flux2_klein_4b"]["transformer"])
    graph, state = nnx.split(nnx.eval_shape(partial(kind, config)))
    weights = jax.tree.map(
        lambda weight: jax.ShapeDtypeStruct(weight.shape, BFLOAT16, sharding=placement.replicated),
        nnx.to_pure_dict(state),
    )

    def abstract(*shape: int, dtype: Any = BFLOAT16) -> jax.ShapeDtypeStruct:
        shape = (placement.mesh.size, *shape)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=placement.by_slot)

    image = 64 * 64 * (2 if reference else 1)
    rotation = rotation_of(config, TEXT_LENGTH, 64, 64, has_reference=reference)
    part: Any = abstract(1, config.width)
    modulated = Modulated(part, part, part)
    mask = abstract(TEXT_LENGTH + image, dtype=jnp.bool_) if reference else None
    inputs: tuple[Any, ...] = (abstract(TEXT_LENGTH + image, config.width), modulated)
    if kind is DoubleBlock:
        tokens = (abstract(TEXT_LENGTH, config.width), abstract(image, config.width))
        inputs = (*tokens, *[(modulated, modulated)] * 2)

    def compute(weights: Any, mask: Any, *inputs: Any) -> Any:
        block: Any = nnx.merge(graph, weights)
        return block(*inputs, rotation, mask)

    with jax.set_mesh(placement.mesh):
        compiled = jax.jit(compute).lower(weights, mask, *inputs).compile()
    assert WIDE_ATTENTION in (compiled.as_text() or ""), BY_XLA


def _compile(lower: Lower) -> None:
    lower().compile()


def memory(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a program that takes nine tenths of the memory, and one that takes eleven tenths."""
    placement, available = placement_of(host, devices=1), TPU_HOSTS[host].generation.memory_bytes
    for tenths in (9, 11):
        # The argument and the result are in memory at the same time.
        count = available * tenths // 10 // 2 // 4
        numbers = jax.ShapeDtypeStruct(
            (count // 1024, 1024), jnp.float32, sharding=placement.replicated
        )
        yield f"{tenths}/10", partial(_compile, partial(jax.jit(jnp.negative).lower, numbers))


def _hurry() -> None:
    """Let the compiler optimize less. It takes a sixth of the time for the autoencoder.

    What it refuses otherwise, it refuses so too.
    """
    jax.config.update("jax_exec_time_optimization_effort", -1.0)


def _small_model(devices_per_copy: int) -> StableDiffusion:
    """Return a model with the head sizes of the published ones: 512 in the autoencoder, 64 in CLIP.

    It has few layers and channels.
    """
    networks = {
        "text_encoder": {**_CLIP, "vocab_size": 1000},
        "unet": {
            **PUBLISHED["sd14"]["unet"],
            "attention_head_dim": _HEADS,  # their number, despite its name
            "block_out_channels": [_HEADS * size for size in _LEVELS[devices_per_copy]],
            "cross_attention_dim": _CLIP["hidden_size"],
            "down_block_types": ["CrossAttnDownBlock2D"] * 2,
            "layers_per_block": 1,
            "norm_num_groups": 16,
            "up_block_types": ["UpBlock2D"] * 2,
        },
        "vae": {
            "block_out_channels": [512],
            "down_block_types": ["DownEncoderBlock2D"],
            "layers_per_block": 1,
            "up_block_types": ["UpDecoderBlock2D"],
        },
        "safety_checker": {"projection_dim": 64, "vision_config": {**_CLIP, "patch_size": 14}},
    }
    with TemporaryDirectory(prefix="configs-") as folder:
        write_configs(networks, Path(folder))
        return STABLE_DIFFUSION.read(CheckpointFiles(Path(folder)))


def _programs(
    placement: Placement,
    *,
    source: StableDiffusion | None = None,
    shape: Shape = SMALL_SHAPE,
    streams: bool = False,
    loras: Sequence[LoraOption] = (),
    prompt_chunks: int = 0,
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all programs of a model, each as a function that compiles it ahead.

    Args:
        source: The model; by default the small one.
    """
    _hurry()
    devices = placement.mesh.devices.flatten().tolist()
    cache = ExecutableCache([MemoryStore()], environment(placement), devices)
    source = source or _small_model(placement.model)
    model = AbstractModel.of(
        source,
        placement,
        cache,
        token_lengths=tuple(each.max_position_embeddings for each in source.configs.text_encoders),
        per_device_batch=1,
        dtype=BFLOAT16,
        max_steps=20,
        options=ModelOptions(streams=streams, job_loras=tuple(loras), prompt_chunks=prompt_chunks),
    )
    for name, lower in model.compiler.lowerings(shape, model.rgb_factors).items():
        yield name, partial(cache.compile_ahead, name, model.rgb_factors, lower)


def published_step(host: str, model: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the guided step of a published model at its usual shape."""
    _hurry()
    lowers = lower_programs(model_of(model), SHAPES[model], placement_of(host))
    yield model, partial(_compile, lowers["step"])


def programs(host: str, devices_per_copy: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all programs of the small model on all devices of a host."""
    yield from _programs(placement_of(host, model=int(devices_per_copy)))


def programs_with_loras(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all programs of the small model with two LoRA of jobs and three chunks of a prompt."""
    with TemporaryDirectory(prefix="lora-") as folder:
        file = Path(folder) / "lora.safetensors"
        write_lora(file, _small_model(1))
        loras = [LoraOption(name=name, path=str(file)) for name in ("style", "detail")]
        yield from _programs(placement_of(host), loras=loras, prompt_chunks=3)


def known_programs(host: str, name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all programs of a well-known checkpoint: its structure, but with tiny widths."""
    with TemporaryDirectory(prefix="configs-") as folder:
        write_known_configs(Path(folder), KNOWN[name])
        source = STABLE_DIFFUSION.read(CheckpointFiles(Path(folder)))
    yield from _programs(placement_of(host), source=source, shape=Shape(height=64, width=64))


def stream_programs(host: str, devices_per_copy: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield all programs of a stream of the small model, on its first copy of the weights."""
    yield from _programs(placement_of(host, model=int(devices_per_copy)), streams=True)


def wrong(host: str, choice: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a step of the small model in which attention makes a wrong choice."""
    compile_step = dict(_programs(placement_of(host, devices=1)))["unguided_step"]

    def compile_wrongly() -> None:
        with patch.object(attention_module, *WRONG[choice]):
            compile_step()

    yield choice, compile_wrongly


def error_of(compile_it: Callable[[], object]) -> str | None:
    """Return the first line of the compiler's error, if it raises one."""
    try:
        compile_it()
    except Exception as error:  # the compiler, Mosaic and JAX raise errors of many types
        return str(error).strip().splitlines()[0]
    return None


def main(what: str, *arguments: str) -> None:
    jax.config.update("jax_platforms", "cpu")  # with libtpu here, JAX would look for a TPU
    whats: dict[str, Any] = {
        "layers": layers,
        "wide-heads": wide_heads,
        "convolutions": convolutions,
        "transformer": transformer,
        "flow-blocks": flow_blocks,
        "memory": memory,
        "published-step": published_step,
        "programs": programs,
        "programs-with-loras": programs_with_loras,
        "known-programs": known_programs,
        "stream-programs": stream_programs,
        "wrong": wrong,
    }
    compiled = whats[what]
    print(json.dumps({name: error_of(compile_it) for name, compile_it in compiled(*arguments)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

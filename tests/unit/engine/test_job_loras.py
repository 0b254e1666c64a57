"""Jobs with other mixtures of LoRA share a batch, and each gets the image that it gets alone.

A job's LoRA compute what merging them would. `test_lora` compares merged weights with diffusers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.build_engine import WITH_LORA, load_networks, load_tokenizer
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.interface import ImageSpec, Shape
from imagefleet.worker.engine.lora_options import LoraOption
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.model_options import ModelOptions
from imagefleet.worker.engine.networks import abstract_networks
from imagefleet.worker.engine.program_arrays import BatchInputs, InitLatents
from imagefleet.worker.engine.schedulers.registry import SCHEDULERS
from tests.unit.engine.parity import FOLDER, PROMPTS, SPEC, load_older, worst
from tools.parity.lora_cases import CASES

NATIVE: Final = Shape(height=32, width=32)
Scales = Mapping[str, float]
MIXTURES: Final[Sequence[Scales]] = (
    {},
    {"kohya": 5.0},
    {"peft": 5.0},
    {"processors": -5.0},
    {"kohya": 2.5, "peft": 4.0},
    {"kohya": 2.5, "peft": -4.0},
    {"peft": 5.0, "processors": 3.0},
    {"kohya": 1.0, "peft": 2.0, "processors": 3.0},
)
"""The scales are large, because the images of this random checkpoint hardly depend on its UNet."""
SHORT: Final = {"two", "xl"}
"""The cases of `make test`. `make long` runs the others."""


def _options(names: Sequence[str], scales: Scales | None = None) -> tuple[LoraOption, ...]:
    folder = FOLDER / "loras"
    return tuple(
        LoraOption(
            name=name,
            path=str(folder / f"{name}.safetensors"),
            scale=1.0 if scales is None else scales[name],
        )
        for name in names
    )


ALL: Final = _options(["kohya", "peft", "processors"])


def _load(cache_dir: Path, loras: Sequence[LoraOption], **sizes: Any) -> DiffusionEngine:
    options = ModelOptions(job_loras=tuple(loras))
    return load_older(cache_dir, max_num_inference_steps=8, options=options, **sizes)


def _specs(mixtures: Sequence[Scales] = MIXTURES) -> list[ImageSpec]:
    return [replace(SPEC, loras=tuple(sorted(mixture.items()))) for mixture in mixtures]


@pytest.fixture(scope="module")
def engine(cache_dir: Path) -> DiffusionEngine:
    """Eight devices with one slot each: only so are images bit-equal in any slot."""
    loaded = _load(cache_dir, ALL, devices=8, per_device_batch=1)
    loaded.warm()
    return loaded


def test_eight_jobs_with_eight_mixtures_share_a_batch_and_each_is_bit_equal_to_itself_alone(
    engine: DiffusionEngine,
) -> None:
    specs, before = _specs(), engine.recompiles
    together = engine.start_batch(specs, NATIVE).images()
    assert len({image.tobytes() for image in together}) == 8
    for spec, image in zip(specs, together, strict=True):
        alone = engine.start_batch([spec], NATIVE).images()[0]
        np.testing.assert_array_equal(alone, image, err_msg=str(spec.loras))
    backwards = engine.start_batch(specs[::-1], NATIVE).images()[::-1]
    np.testing.assert_array_equal(backwards, together)
    assert engine.recompiles == before


def test_mixtures_that_enter_and_leave_a_stream_equal_themselves_alone(
    cache_dir: Path, engine: DiffusionEngine
) -> None:
    (stream,) = _load(cache_dir, ALL, devices=1, per_device_batch=2).open_streams()
    specs = [
        replace(spec, num_inference_steps=3 + number) for number, spec in enumerate(_specs()[:4])
    ]
    alone = []
    for spec in specs:
        stream.start(0, spec, NATIVE)
        while not stream.step():
            pass
        alone.append(stream.finish(0)().pixels)
    together: dict[int, NDArray[np.uint8]] = {}
    running: dict[int, int] = {}
    waiting = list(range(4))
    while waiting or running:
        for slot in {0, 1} - running.keys():
            if waiting:
                running[slot] = waiting.pop(0)
                stream.start(slot, specs[running[slot]], NATIVE)
        for slot in stream.step():
            together[running.pop(slot)] = stream.finish(slot)().pixels
    for number in range(4):
        assert np.abs(together[number].astype(int) - alone[number]).max() <= 1
    batch = engine.start_batch(specs, NATIVE).images().astype(int)
    assert np.abs(batch - alone).max() <= 1


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in SHORT else [pytest.mark.long]) for case in CASES],
)
def test_a_job_computes_what_the_merged_model_computes(case: str) -> None:
    base, scales = CASES[case]
    large = {name: 4 * scale for name, scale in scales.items()}
    merged = _one_step(base, loras=_options(list(scales), large))
    # The job uses all but the last of the files that the worker holds, in another order.
    held = [*sorted(scales, reverse=True), "kohya_xl" if base == "xl" else "processors"]
    chosen = _one_step(base, held=_options(list(dict.fromkeys(held))), scales=large)
    plain = _one_step(base)
    for one, other, without in zip(chosen, merged, plain, strict=True):
        assert worst(one, other) < 1e-5
        assert worst(without, other) > 1e-4 or case == "xl_peft"


@pytest.mark.parametrize("base", ["older", pytest.param("xl", marks=pytest.mark.long)])
def test_a_lora_of_every_layer_computes_what_the_merged_model_computes(
    base: str, tmp_path: Path
) -> None:
    random, tensors = np.random.default_rng(5), {}
    files = CheckpointFiles(FOLDER / base)
    for network, model in abstract_networks(Configs.read(files)).items():
        for entry in weight_entries(network, model) if network in WITH_LORA else ():
            if entry.path[-1] != "kernel":
                continue
            out, *rest = entry.stored_shapes[0]
            layer, ones = f"{network}.{entry.key.removesuffix('.weight')}", [1] * (len(rest) - 1)
            down, up = random.normal(0, 0.1, (2, *rest)), random.normal(0, 0.1, (out, 2, *ones))
            tensors[f"{layer}.lora_A.weight"] = down.astype(np.float32)
            tensors[f"{layer}.lora_B.weight"] = up.astype(np.float32)
    assert any("downsamplers" in key for key in tensors)
    save_file(tensors, tmp_path / "all.safetensors")
    file = LoraOption(name="all", path=str(tmp_path / "all.safetensors"), scale=0.7)
    merged = _one_step(base, loras=[file])
    chosen = _one_step(base, held=[replace(file, scale=1.0)], scales={"all": 0.7})
    for one, other in zip(chosen, merged, strict=True):
        assert worst(one, other) < 1e-5


def _one_step(
    base: str,
    *,
    loras: Sequence[LoraOption] = (),
    held: Sequence[LoraOption] = (),
    scales: Scales | None = None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the keys of the text in the last block, and the latents after a step from noise."""
    files = CheckpointFiles(FOLDER / base)
    configs = Configs.read(files)
    programs, weights = load_networks(
        files,
        configs,
        Placement.of(1),
        np.dtype(np.float32),
        options=ModelOptions(loras=tuple(loras), job_loras=tuple(held)),
    )
    table = SCHEDULERS["euler"](configs.noise, 2, 0)
    row = np.zeros((1, len(held)), np.float32)
    for number, option in enumerate(held):
        row[0, number] = (scales or {}).get(option.name, 0)
    inputs = BatchInputs(
        tokens=load_tokenizer(files, configs)(["blue", PROMPTS[0]])[None, :, :, None],
        has_negative=np.array([True]),
        clip_skip=np.zeros(1, np.int32),
        key=np.zeros((1, 2), np.uint32),
        image_index=np.zeros(1, np.uint32),
        initial_mix=np.ones((1, 2), np.float32),
        guidance=np.full(1, 3, np.float32),
        rows=table.padded(3)[None],
        calls=np.full(1, len(table.rows), np.int32),
        lora_scales=row if held else None,
    )
    init_latents = InitLatents(np.zeros((1, 8, 8, 4), np.float32), np.ones((1, 8, 8, 1), bool))
    conditions, state = jax.jit(programs.begin)(weights, inputs, init_latents)
    state, _ = jax.jit(programs.step)(weights.unet, conditions, state)
    return np.asarray(jax.tree.leaves(conditions.text)[0]), np.asarray(state.latents)


def test_a_model_on_several_devices_computes_the_same(
    cache_dir: Path, engine: DiffusionEngine
) -> None:
    split = _load(cache_dir, ALL, mesh="data=1,model=2", devices=2, per_device_batch=2)
    split.warm()
    specs = _specs()[3:5]
    expected = engine.start_batch(specs, NATIVE).images().astype(int)
    assert np.abs(split.start_batch(specs, NATIVE).images() - expected).max() <= 1


def test_workers_with_other_files_do_not_share_programs(tmp_path: Path) -> None:
    """The same shapes with other columns are another program."""
    first = _load(tmp_path, ALL[:2], devices=1)
    first.warm()
    again = _load(tmp_path, ALL[:2], devices=1)
    again.warm()
    other = _load(tmp_path, ALL[1::-1], devices=1)
    other.warm()
    compiled = [each._executable_cache.compiled for each in (first, again, other)]
    assert compiled[0] > 0 == compiled[1] < compiled[2]


def test_a_lora_that_the_worker_does_not_hold_is_refused(engine: DiffusionEngine) -> None:
    spec = replace(_specs()[0], loras=(("style", 1.0),))
    with pytest.raises(ValueError, match="'style' is not available; there are kohya, peft, proc"):
        engine.start_batch([spec], NATIVE)


def test_a_worker_names_the_files_that_jobs_may_use(engine: DiffusionEngine) -> None:
    assert [lora.name for lora in engine.info.job_loras] == ["kohya", "peft", "processors"]
    assert all(lora.digest.startswith("sha256:") for lora in engine.info.job_loras)
    assert engine.info.loras == ()


def test_a_file_for_an_embedding_is_refused(cache_dir: Path, tmp_path: Path) -> None:
    shape = load_file(FOLDER / "older/text_encoder/model.safetensors")[
        "text_model.embeddings.token_embedding.weight"
    ].shape
    layer = "text_encoder.text_model.embeddings.token_embedding"
    file = tmp_path / "tokens.safetensors"
    save_file(
        {
            f"{layer}.lora_A.weight": np.ones((1, shape[1]), np.float32),
            f"{layer}.lora_B.weight": np.ones((shape[0], 1), np.float32),
        },
        file,
    )
    with pytest.raises(CheckpointError, match="is no linear layer and no convolution, so jobs"):
        _load(cache_dir, [LoraOption(name="tokens", path=str(file))], devices=1)

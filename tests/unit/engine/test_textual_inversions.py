"""Prompts with the tokens of textual inversions give what they give in diffusers.

`tools/parity/inversions.py` wrote the files and the answers.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora import digest_with
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.loading.compile_ahead import compile_ahead
from imagefleet.worker.engine.loading.load_engine import SharedStores
from imagefleet.worker.engine.options.mesh_spec import MeshSpec
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.images.metadata import image_metadata
from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup.load_model import model_options
from tests.unit.engine.parity import (
    FOLDER,
    Oracle,
    by_encoder,
    denoiser_of,
    generate_with_noise_of_torch,
    load_in_float32,
    load_older,
    load_program,
    read_model,
    token_ids,
    worst,
)
from tools.parity.inversion_cases import FILES, NEGATIVES, PROMPTS

INVERSIONS: Final = FOLDER / "inversions"
NATIVE: Final = Shape(height=32, width=32)
TOLERANCE: Final = 5e-6
"""As in `test_models`."""
SCHEDULER: Final = {"older": "pndm", "newer": "ddim", "xl": "euler"}


def _options(base: str) -> tuple[TextualInversionOption, ...]:
    return tuple(
        TextualInversionOption(name=token, path=str(INVERSIONS / f"{file}.safetensors"))
        for token, file in FILES[base].items()
    )


class Loaded:
    """A checkpoint with its textual inversions."""

    def __init__(self, base: str, options: Sequence[TextualInversionOption] | None = None) -> None:
        files = CheckpointFiles(FOLDER / base)
        model = read_model(files)
        self.tokenizer = model.load_tokenizer(files)
        given = _options(base) if options is None else options
        model = model.with_textual_inversions(given, self.tokenizer)
        self.programs, self.weights = load_in_float32(files, model)
        answers = load_file(files.folder / "expected.safetensors")
        self.oracle = Oracle(files, model, self.programs, self.weights, answers)


@pytest.fixture(scope="module", params=sorted(FILES))
def base(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def loaded(base: str) -> Loaded:
    return Loaded(base)


@pytest.fixture(scope="module")
def answers(base: str) -> dict[str, NDArray[Any]]:
    stored = load_file(INVERSIONS / "expected.safetensors")
    return {key.removeprefix(f"{base}|"): value for key, value in stored.items() if base in key}


def test_ids_and_states_equal_those_of_diffusers(
    base: str, loaded: Loaded, answers: dict[str, NDArray[Any]]
) -> None:
    tokens = np.stack(loaded.tokenizer(PROMPTS[base]), axis=1)
    np.testing.assert_array_equal(tokens, answers["tokens"])
    slots = len(tokens)
    states = jax.jit(denoiser_of(loaded.programs).prompt_encoder)(
        loaded.weights.text,
        by_encoder(np.stack([tokens, tokens], axis=1)),
        np.ones(slots, bool),
        np.zeros(slots, np.int32),
    )
    assert worst(states.hidden[:, 1], answers["text"]) < TOLERANCE
    if base == "xl":
        assert states.pooled is not None
        assert worst(states.pooled[:, 1], answers["pooled"]) < TOLERANCE


def test_images_equal_those_of_diffusers(
    base: str, loaded: Loaded, answers: dict[str, NDArray[Any]]
) -> None:
    pairs = zip(NEGATIVES[base], PROMPTS[base][:2], strict=True)
    tokens = token_ids(loaded.tokenizer, pairs)
    images = generate_with_noise_of_torch(loaded.oracle, tokens, SCHEDULER[base], NEGATIVES[base])
    difference = np.abs(images - answers["pictures"])
    assert difference.max() <= 1
    assert difference.mean() < 1e-3


def _load(cache_dir: Path, inversions: Sequence[TextualInversionOption]) -> DiffusionEngine:
    return load_older(
        cache_dir,
        devices=1,
        max_num_inference_steps=4,
        options=ModelOptions(textual_inversions=tuple(inversions)),
    )


def test_programs_compiled_ahead_are_those_of_a_worker_with_the_same_tokens(tmp_path: Path) -> None:
    options = ModelOptions(textual_inversions=_options("older"))
    ahead = compile_ahead(
        str(FOLDER / "older"),
        None,
        shapes=None,
        per_device_batch=1,
        mesh=MeshSpec.parse(None, 1),
        dtype=None,
        cache_dir=tmp_path,
        shared=SharedStores(),
        max_num_inference_steps=4,
        options=options,
    )
    # It has the text encoder, with the rows of the tokens.
    assert next(iter(ahead)) == ("32x32/begin", True)
    engine = _load(tmp_path, _options("older"))
    cache = load_program(engine, "begin")
    assert (cache.compiled, cache.reloaded) == (0, 1)
    spec = ImageSpec(prompt="a <dog>", seed=1, num_inference_steps=2, guidance_scale=3.0)
    info = engine.info
    assert [each.name for each in info.textual_inversions] == ["<dog>", "CharTurner"]
    plain = _load(tmp_path, ()).info
    assert info.digest == digest_with(plain.digest, (), info.textual_inversions) != plain.digest
    metadata = image_metadata(job_id="j", spec=spec, shape=NATIVE, info=info)
    assert metadata["textual_inversions"] == [asdict(each) for each in info.textual_inversions]
    assert metadata["textual_inversions"][0]["digest"].startswith("sha256:")
    assert "textual_inversions" not in image_metadata(
        job_id="j", spec=spec, shape=NATIVE, info=plain
    )


Tensors = dict[str, NDArray[Any]]


@pytest.mark.parametrize(
    ("base", "tensors", "sentence"),
    [
        (
            "older",
            {"emb_params": np.ones((2, 24), np.float32)},
            "emb_params has vectors of 24 numbers, but text_encoder of this model has hidden_size="
            "16; take a textual inversion that was trained for this model",
        ),
        (
            "xl",
            {"clip_l": np.ones((1, 16), np.float32), "clip_g": np.ones((1, 16), np.float32)},
            "clip_g has vectors of 16 numbers, but text_encoder_2 of this model has hidden_size=24",
        ),
        (
            "xl",
            {"emb_params": np.ones((1, 16), np.float32)},
            "holds emb_params, but a textual inversion for this model holds clip_l and clip_g",
        ),
        (
            "older",
            {"clip_l": np.ones((1, 16), np.float32), "clip_g": np.ones((1, 24), np.float32)},
            "holds clip_g, clip_l, but a textual inversion for this model holds one tensor",
        ),
        ("older", {"a": np.ones((1, 2, 16), np.float32)}, r"a is F32 \[1, 2, 16\]; a textual"),
        ("older", {"a": np.ones((0, 16), np.float32)}, r"a is F32 \[0, 16\]; a textual inversion"),
        ("older", {"a": np.ones((1, 16), np.int32)}, r"a is I32 \[1, 16\]; a textual inversion"),
        (
            "older",
            {"\x1b" + 900 * "a": np.ones(1, np.float32)},
            r"\\x1ba{180,199}… has vectors of 1 ",
        ),
        ("older", {"a": np.full(16, np.nan, np.float32)}, "a holds NaN or infinity"),
    ],
)
def test_a_file_for_another_model_is_refused(
    tmp_path: Path, base: str, tensors: Tensors, sentence: str
) -> None:
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=f"^{path}:? {sentence}"):
        Loaded(base, [TextualInversionOption(name="<a>", path=str(path))])


def test_a_missing_file_and_a_pickle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"")
    for name in ("b.safetensors", "a.pt"):
        option = TextualInversionOption(name="<a>", path=str(tmp_path / name))
        with pytest.raises(CheckpointError, match=r"is not a file that ends in \.safetensors"):
            Loaded("older", [option])


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["blue</w>"], "tokenizer has the token 'blue</w>' already; choose another token"),
        (["<|endoftext|>"], "tokenizer has the token '<|endoftext|>' already"),
        (["<a>", "<a>_1"], "textual inversion <a>_1: tokenizer has the token '<a>_1' already"),
        (["<a>_1", "<a>"], "textual inversion <a>: tokenizer has the token '<a>_1' already"),
        (["<a>_2", "<a>"], "textual inversion <a>: tokenizer has the token '<a>_2' already"),
    ],
)
def test_a_token_of_the_vocabulary_is_refused(names: Sequence[str], sentence: str) -> None:
    path = str(INVERSIONS / "web_ui.safetensors")
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        Loaded("older", [TextualInversionOption(name=name, path=path) for name in names])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cat", "'cat' is no textual inversion; write token=path, as in <cat>=/embeddings/cat"),
        ("=a", "'=a' is no textual inversion"),
        ("<cat>=", "'<cat>=' is no textual inversion"),
        ("my cat=a", "the token 'my cat' must be 1 to 64 printable characters without spaces"),
        ("c" * 65 + "=a", "must be 1 to 64 printable characters"),
        ("a=x,a=y", "two files have the token 'a'"),
    ],
)
def test_the_setting_refuses_what_is_no_token_and_path(text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match="TEXTUAL_INVERSION: .*" + sentence):
        WorkerSettings.load(textual_inversion=text)


def test_the_setting_takes_several_files_and_one_model() -> None:
    settings = WorkerSettings.load(textual_inversion="<a>=/x/a=1, b=~/b")
    assert [(each.name, each.path) for each in model_options(settings).textual_inversions] == [
        ("<a>", "/x/a=1"),
        ("b", "~/b"),
    ]
    with pytest.raises(ConfigurationError, match="TEXTUAL_INVERSION fits one model"):
        WorkerSettings.load(textual_inversion="<a>=a", models="fake fake:name=b")

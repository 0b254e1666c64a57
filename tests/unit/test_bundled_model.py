"""The bundled checkpoints are small, complete, and in diffusers format."""

import json

import pytest
import transformers

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.loading import bundled_models
from imagefleet.worker.engine.loading.bundled_models import BUNDLED, bundled_folder
from imagefleet.worker.engine.loading.read_model import ModelSetup
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer

PROMPTS = [
    "a small red circle on the left on a blue background",
    "",
    "Zwölf  Bücher, 3 for €5! 🔴",
    "word " * 200,
]


@pytest.mark.parametrize("model", BUNDLED)
def test_a_bundled_model_takes_at_most_twelve_megabytes(model: str) -> None:
    files = (path for path in bundled_folder(model).rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) <= 12e6


def test_the_pipeline_and_networks_of_the_first_are_those_of_stable_diffusion() -> None:
    index = json.loads((bundled_folder("shapes") / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["unet"] == ["diffusers", "UNet2DConditionModel"]
    assert index["scheduler"] == ["diffusers", "DDIMScheduler"]


def test_the_pipeline_and_networks_of_the_second_are_those_of_z_image() -> None:
    index = json.loads((bundled_folder("shapes-dit") / "model_index.json").read_text())
    assert index["_class_name"] == "ZImagePipeline"
    assert index["transformer"] == ["diffusers", "ZImageTransformer2DModel"]
    assert index["text_encoder"] == ["transformers", "Qwen3Model"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_tokens_of_the_first_equal_those_of_transformers(prompt: str) -> None:
    folder = bundled_folder("shapes")
    theirs = transformers.CLIPTokenizer.from_pretrained(folder / "tokenizer")
    ids = theirs(prompt, padding="max_length", max_length=77, truncation=True)["input_ids"]
    assert ClipTokenizer(CheckpointFiles(folder), "tokenizer")([prompt])[0].tolist() == ids


def test_the_tokens_of_the_second_equal_those_of_transformers() -> None:
    folder = bundled_folder("shapes-dit")
    setup = ModelSetup.read(folder, (), ModelOptions())
    assert (setup.shapes[0].height, setup.shapes[0].width) == (64, 64)
    theirs = transformers.Qwen2Tokenizer.from_pretrained(folder / "tokenizer")
    for prompt, (ids,) in zip(PROMPTS, setup.tokenizer(PROMPTS)[0][:, None], strict=True):
        chat = theirs.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
        )
        expected = theirs(chat, max_length=512, truncation=True)["input_ids"]
        assert ids[: len(expected)].tolist() == expected
        assert (ids[len(expected) :] < 0).all()  # padding


def test_a_model_whose_wheel_is_missing_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bundled_models, "find_spec", lambda _: None)
    with pytest.raises(CheckpointError, match=r"pip install \./models/shapes_dit"):
        bundled_folder("shapes-dit")

"""The bundled checkpoint is small, complete, and in diffusers format."""

import json
from pathlib import Path

import pytest
import transformers

import imagefleet.worker
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.tokenizers.clip import ClipTokenizer

FOLDER = Path(imagefleet.worker.__file__).parent / "bundled" / "shapes"
PROMPTS = [
    "a small red circle on the left on a blue background",
    "",
    "Zwölf  Bücher, 3 for €5! 🔴",
    "word " * 200,
]


def test_the_bundled_model_takes_at_most_twelve_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 12e6


def test_its_pipeline_and_networks_are_those_of_stable_diffusion() -> None:
    index = json.loads((FOLDER / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionPipeline"
    assert index["unet"] == ["diffusers", "UNet2DConditionModel"]
    assert index["scheduler"] == ["diffusers", "DDIMScheduler"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_its_tokens_equal_those_of_transformers(prompt: str) -> None:
    theirs = transformers.CLIPTokenizer.from_pretrained(FOLDER / "tokenizer")
    ids = theirs(prompt, padding="max_length", max_length=77, truncation=True)["input_ids"]
    assert ClipTokenizer(CheckpointFiles(FOLDER), "tokenizer")([prompt])[0].tolist() == ids

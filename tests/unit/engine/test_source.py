"""A model is found by its name, and of a Hub's files only those are fetched that are read."""

from pathlib import Path

import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.locate import announced_name, find_checkpoint
from tests.support import hub

MODEL = "someone/something"
UNET = "unet/diffusion_pytorch_model"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder; give `shapes`"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model_index\.json"):
        find_checkpoint(str(tmp_path))


def test_a_hub_that_does_not_know_the_model_is_one_sentence(
    checkpoint: Path, tmp_path: Path
) -> None:
    with hub.serving(MODEL, checkpoint, tmp_path / "cache"), pytest.raises(CheckpointError) as said:
        find_checkpoint("someone/else")
    assert "model 'someone/else' is neither a folder nor can it be had from the Hub" in str(said)
    assert "\n" not in str(said.value)


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.serving(MODEL, checkpoint, tmp_path / "cache"):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(CheckpointError, match="check the name, the network and HF_TOKEN"):
            find_checkpoint(MODEL)


def test_only_what_we_read_is_fetched(checkpoint: Path, tmp_path: Path) -> None:
    for other in (".bin", ".fp16.safetensors", ".non_ema.safetensors"):
        (checkpoint / f"{UNET}{other}").write_bytes(b"other")
    (checkpoint / "v1.ckpt").write_bytes(b"other")
    with hub.serving(MODEL, checkpoint, tmp_path / "cache") as fetched:
        folder = find_checkpoint(MODEL)
        assert f"{UNET}.safetensors" in fetched
        assert {(checkpoint / name).read_bytes() for name in fetched}.isdisjoint({b"other"})
        assert len(fetched) == len(set(fetched))
    Configs.read(folder)
    assert announced_name(MODEL, folder) == MODEL


def test_half_precision_is_fetched_where_there_is_no_other(
    checkpoint: Path, tmp_path: Path
) -> None:
    weights = checkpoint / f"{UNET}.safetensors"
    weights.rename(checkpoint / f"{UNET}.fp16.safetensors")
    (checkpoint / "vae" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"other")
    with hub.serving(MODEL, checkpoint, tmp_path / "cache") as fetched:
        find_checkpoint(MODEL)
    assert f"{UNET}.fp16.safetensors" in fetched
    assert "vae/diffusion_pytorch_model.fp16.safetensors" not in fetched


def test_what_was_fetched_once_needs_no_hub(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.serving(MODEL, checkpoint, tmp_path / "cache") as fetched:
        folder = find_checkpoint(MODEL)
        fetched.clear()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert find_checkpoint(MODEL) == folder
        assert not fetched

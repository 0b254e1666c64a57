"""A checkpoint that cannot be used is refused with one clear sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from shared.errors import CheckpointError
from worker.engine import checkpoint as files
from worker.engine.checkpoint import TensorFiles, digest, find_checkpoint
from worker.engine.stable_diffusion import Configs

UNET = "diffusion_pytorch_model.safetensors"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder; give `shapes`"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model_index\.json"):
        find_checkpoint(str(tmp_path))


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no route to host\nand a long trace")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("someone/something")
    assert "ConnectionError: no route to host)" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_the_files_we_read_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    asked: list[list[str]] = []

    def download(_repository: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(checkpoint)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_checkpoint("someone/something") == checkpoint
    assert files.announced_name("someone/something", checkpoint) == "someone/something"
    assert f"unet/{UNET}" in asked[0]
    assert not [pattern for pattern in asked[0] if pattern.endswith((".bin", ".ckpt"))]


def test_a_pickle_is_not_read(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.rename(unet.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match="as a pickle only"):
        TensorFiles(checkpoint / "unet")


def test_a_truncated_file_is_named(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.write_bytes(unet.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="is truncated or damaged"):
        TensorFiles(checkpoint / "unet")


def test_a_broken_config_is_named(checkpoint: Path) -> None:
    (checkpoint / "unet" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"unet/config\.json cannot be read as JSON"):
        Configs.read(checkpoint)


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "is a FluxPipeline"),
        ("model_index.json", {"_class_name": "StableDiffusionXLPipeline"}, "without its text_e"),
        ("unet/config.json", {"addition_embed_type": "text_time"}, "addition_time_embed_dim is m"),
        ("unet/config.json", {"down_block_types": ["DownBlock2D"]}, "1 entries for 2 levels"),
        ("unet/config.json", {"addition_embed_type": "image"}, "addition_embed_type='image'"),
        ("unet/config.json", {"only_cross_attention": True}, "only_cross_attention=True"),
        ("unet/config.json", {"num_attention_heads": 3}, "num_attention_heads="),
        ("unet/config.json", {"transformer_layers_per_block": [[1, 2], 1]}, r"\[1, 2\] is not"),
        ("unet/config.json", {"cross_attention_dim": "wide"}, "cross_attention_dim='wide' is not"),
        ("unet/config.json", {"norm_num_groups": 7}, "norm_num_groups=7 does not divide"),
        ("unet/config.json", {"in_channels": 9}, "UNet in_channels"),
        ("unet/config.json", {"cross_attention_dim": 99}, "cross_attention_dim"),
        ("vae/config.json", {"shift_factor": 0.1}, "shift_factor"),
        ("text_encoder/config.json", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("text_encoder/config.json", {"architectures": ["T5EncoderModel"]}, "architectures"),
    ],
)
def test_a_config_of_another_family_is_refused_by_field(
    checkpoint: Path, file: str, change: dict[str, Any], named: str
) -> None:
    path = checkpoint / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=named):
        Configs.read(checkpoint)


def test_the_digest_follows_every_file_that_decides_a_picture(checkpoint: Path) -> None:
    before = digest(checkpoint)
    assert before.startswith("sha256:")
    (checkpoint / "README.md").write_text("about")
    assert digest(checkpoint) == before
    for path in (
        checkpoint / "scheduler" / "scheduler_config.json",
        checkpoint / "tokenizer" / "merges.txt",
        checkpoint / "unet" / UNET,
    ):
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert digest(checkpoint) != before
        path.write_bytes(content)
    assert digest(checkpoint) == before

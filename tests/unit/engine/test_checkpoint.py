"""A checkpoint that cannot be used is refused with an error that names the file and the fault."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.configs import Configs
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles, digest, weight_files

UNET = "diffusion_pytorch_model.safetensors"
SCHEDULER = "scheduler/scheduler_config.json"
UP_ATTENTION_ONLY = {
    "attention_head_dim": [3, 4],
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}


def test_weights_as_a_pickle_are_refused(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.rename(unet.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match="holds weights as a pickle only"):
        TensorFiles(checkpoint / "unet")


def test_a_folder_without_weights_is_refused(checkpoint: Path) -> None:
    (checkpoint / "unet" / UNET).unlink()
    with pytest.raises(
        CheckpointError, match=r"holds no weights; it needs model or diffusion_pytorch_model"
    ):
        TensorFiles(checkpoint / "unet")


@pytest.mark.parametrize("variant", ["", ".fp16"])
@pytest.mark.parametrize("variant_first", [True, False])
def test_shards_are_read_as_one_network(
    checkpoint: Path, variant: str, variant_first: bool
) -> None:
    folder = checkpoint / "unet"
    whole = load_file(folder / UNET)
    (folder / UNET).unlink()
    names = sorted(whole)
    for index, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"-0000{index}-of-00002"
        name = UNET.replace(".safetensors", variant + shard if variant_first else shard + variant)
        save_file({key: whole[key] for key in part}, folder / f"{name}.safetensors")
    assert TensorFiles(folder).shapes == {key: value.shape for key, value in whole.items()}
    weight_files(folder)[1].unlink()
    with pytest.raises(CheckpointError, match=r"has 1 of 2 shards: diffusion.*-00001-of-00002"):
        TensorFiles(folder)


def test_a_tensor_that_is_in_two_shards_is_refused(checkpoint: Path) -> None:
    folder = checkpoint / "unet"
    for index in (1, 2):
        (folder / f"{Path(UNET).stem}-0000{index}-of-00002.safetensors").write_bytes(
            (folder / UNET).read_bytes()
        )
    (folder / UNET).unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\S+ holds \S+, which another file"):
        TensorFiles(folder)


def test_full_precision_is_preferred_to_half_precision(checkpoint: Path) -> None:
    full = checkpoint / "unet" / UNET
    half = full.with_suffix(".fp16.safetensors")
    half.write_bytes(full.read_bytes())
    assert weight_files(checkpoint / "unet") == [full]
    full.unlink()
    assert weight_files(checkpoint / "unet") == [half]


def test_the_error_names_a_truncated_file(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.write_bytes(unet.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="is truncated or damaged"):
        TensorFiles(checkpoint / "unet")


def test_the_error_names_a_config_that_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "unet" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"unet/config\.json cannot be read as JSON"):
        Configs.read(checkpoint)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "_class_name is 'FluxPipeline'"),
        (
            "model_index.json",
            {"_class_name": "StableDiffusionXLPipeline"},
            "text_encoder_2 is missing",
        ),
        ("unet/config.json", {"addition_embed_type": "text_time"}, "addition_time_embed_dim is m"),
        ("unet/config.json", {"down_block_types": ["DownBlock2D"]}, "1 entries for 2 levels"),
        ("unet/config.json", {"addition_embed_type": "image"}, "addition_embed_type='image'"),
        ("unet/config.json", {"only_cross_attention": True}, "only_cross_attention=True"),
        ("unet/config.json", {"num_attention_heads": 3}, "num_attention_heads="),
        ("unet/config.json", {"transformer_layers_per_block": [[1, 2], 1]}, r"\[1, 2\] is not"),
        ("unet/config.json", {"cross_attention_dim": "wide"}, "cross_attention_dim='wide' is not"),
        ("unet/config.json", {"norm_num_groups": 7}, "norm_num_groups=7 does not divide"),
        ("unet/config.json", {"in_channels": 9}, "UNet in_channels"),
        (SCHEDULER, {"num_train_timesteps": "1000"}, "num_train_timesteps='1000' is not a whole"),
        (SCHEDULER, {"num_train_timesteps": 0}, "num_train_timesteps=0 is not a whole"),
        (SCHEDULER, {"steps_offset": "1"}, "steps_offset='1' is not a whole number of at least 0"),
        (SCHEDULER, {"beta_start": None}, "beta_start=None is not a number above 0 below 1"),
        (SCHEDULER, {"clip_sample_range": "x"}, "clip_sample_range='x' is not a number above 0"),
        (
            SCHEDULER,
            {"original_inference_steps": 2000},
            "=2000 is more than num_train_timesteps=1000",
        ),
        (SCHEDULER, {"rescale_betas_zero_snr": "no"}, "rescale_betas_zero_snr='no'"),
        ("vae/config.json", {"scaling_factor": "0.18"}, "scaling_factor='0.18' is not a number"),
        ("unet/config.json", {"norm_eps": "x"}, "norm_eps='x' is not a number above 0"),
        ("unet/config.json", {"freq_shift": None}, "freq_shift is missing"),
        ("unet/config.json", {"down_block_types": 7}, "down_block_types=7 is not a list"),
        ("unet/config.json", {"up_block_types": [["x"], 3]}, r"up_block_types entry=\['x'\]"),
        ("unet/config.json", {"mid_block_type": ["x"]}, r"mid_block_type=\['x'\]"),
        ("unet/config.json", UP_ATTENTION_ONLY, "3 heads do not divide block_out_channels=16"),
        ("unet/config.json", {"cross_attention_dim": 99}, "cross_attention_dim"),
        ("vae/config.json", {"shift_factor": 0.1}, "shift_factor"),
        ("unet/config.json", {"attention_head_dim": 5}, "5 heads do not divide block_out_ch"),
        ("vae/config.json", {"block_out_channels": 64}, "block_out_channels=64 is not a list"),
        ("vae/config.json", {"in_channels": 4}, "in_channels=4"),
        ("text_encoder/config.json", {"hidden_size": "wide"}, "hidden_size='wide' is not"),
        ("text_encoder/config.json", {"num_attention_heads": 3}, "heads=3 does not divide"),
        ("text_encoder/config.json", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("text_encoder/config.json", {"architectures": ["T5EncoderModel"]}, "architectures"),
    ],
)
def test_the_error_names_an_unsupported_field(
    checkpoint: Path, file: str, change: dict[str, Any], message: str
) -> None:
    path = checkpoint / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        Configs.read(checkpoint)


def test_the_digest_changes_with_every_file_that_influences_an_image(checkpoint: Path) -> None:
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

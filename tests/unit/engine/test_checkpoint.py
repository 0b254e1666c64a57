"""A checkpoint that cannot be used is refused with an error that names the file and the fault."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.load_engine import load_engine
from tests.support.latents import file_of_empty_tensors
from tests.unit.engine.parity import load_in_float32, read_model

UNET = "diffusion_pytorch_model.safetensors"
SCHEDULER = "scheduler/scheduler_config.json"
UP_ATTENTION_ONLY = {
    "attention_head_dim": [3, 4],
    "down_block_types": ["DownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}


def _open(checkpoint: Path) -> TensorFiles:
    return CheckpointFiles(checkpoint).open_weights(["unet", "vae"])["unet"]


def test_weights_as_a_pickle_are_refused(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.rename(unet.with_suffix(".bin"))
    with pytest.raises(CheckpointError, match="holds weights as a pickle only"):
        _open(checkpoint)


def test_weights_under_another_name_are_refused(checkpoint: Path) -> None:
    (checkpoint / "unet" / UNET).rename(checkpoint / "unet" / "model.safetensors")
    with pytest.raises(
        CheckpointError,
        match=r"needs diffusion_pytorch_model\.safetensors\.index\.json or diffusion_pytorch_model"
        r"\.safetensors, but it holds model\.safetensors, which is never read here",
    ):
        _open(checkpoint)


def _split(folder: Path, shard: str, index: str) -> list[Path]:
    """Split the weights in two shards with an index, and remove the whole file."""
    whole = load_file(folder / UNET)
    names = sorted(whole)
    weight_map: dict[str, str] = {}
    shards: list[Path] = []
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shards.append(folder / shard.format(number))
        save_file({key: whole[key] for key in part}, shards[-1])
        weight_map |= dict.fromkeys(part, shards[-1].name)
    (folder / UNET).unlink()
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return shards


@pytest.mark.parametrize("variant", ["", ".fp16"])
def test_shards_are_read_as_one_network(checkpoint: Path, variant: str) -> None:
    folder = checkpoint / "unet"
    shapes = {key: value.shape for key, value in load_file(folder / UNET).items()}
    stem = Path(UNET).stem
    shards = _split(
        folder,
        f"{stem}{variant}-0000{{}}-of-00002.safetensors",
        f"{stem}.safetensors.index{variant}.json",
    )
    assert _open(checkpoint).shapes == shapes
    shards[0].unlink()
    with pytest.raises(CheckpointError, match=r"2 shards, of which 1 is missing: .*00001-of-0000"):
        _open(checkpoint)


def test_names_of_2022_in_shards_are_refused(checkpoint: Path) -> None:
    folder = checkpoint / "vae"
    _split(folder, "part-{}.safetensors", f"{UNET}.index.json")
    files = CheckpointFiles(checkpoint)
    with pytest.raises(
        CheckpointError, match=r"vae: \S+\.(key|query|value|proj_attn)\.\S+ is a name"
    ):
        load_in_float32(files)


def test_shards_without_their_index_are_refused(checkpoint: Path) -> None:
    _split(checkpoint / "unet", "diffusion_pytorch_model-0000{}-of-00002.safetensors", "other.json")
    with pytest.raises(
        CheckpointError, match=r"needs \S+index\.json or .* but it holds .*00001-of"
    ):
        _open(checkpoint)


def test_an_index_that_leaves_its_folder_is_refused(checkpoint: Path) -> None:
    index = checkpoint / "unet" / f"{UNET}.index.json"
    index.write_text(json.dumps({"weight_map": {"conv_in.weight": f"../vae/{UNET}"}}))
    with pytest.raises(CheckpointError, match=r"weight_map lists '\.\./vae/diffusion"):
        _open(checkpoint)


def test_a_tensor_that_is_in_two_shards_is_refused(checkpoint: Path) -> None:
    folder = checkpoint / "unet"
    content = (folder / UNET).read_bytes()
    shards = _split(folder, "part-{}.safetensors", f"{UNET}.index.json")
    for shard in shards:
        shard.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"part-2.safetensors holds \S+, which another shard"):
        _open(checkpoint)


def test_full_precision_is_preferred_to_half_precision(checkpoint: Path) -> None:
    full = checkpoint / "unet" / UNET
    half = full.with_suffix(".fp16.safetensors")
    half.write_bytes(b"not even weights")
    expected = _open(checkpoint).shapes
    full.replace(half)
    assert _open(checkpoint).shapes == expected


def test_a_header_that_would_take_much_memory_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(file_of_empty_tensors(140_000))
    with pytest.raises(
        CheckpointError, match=r"has a header of 9,\d+,\d+ bytes, but at most 8,388"
    ):
        TensorFiles([file])
    file.write_bytes((9 * 1024**2).to_bytes(8, "little") + b"{}")
    with pytest.raises(CheckpointError, match="is truncated or damaged"):
        TensorFiles([file])


def test_the_error_names_a_truncated_file(checkpoint: Path) -> None:
    unet = checkpoint / "unet" / UNET
    unet.write_bytes(unet.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match="is truncated or damaged"):
        _open(checkpoint)


def test_the_error_names_a_config_that_is_not_json(checkpoint: Path) -> None:
    (checkpoint / "unet" / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"unet/config\.json cannot be read as JSON"):
        Configs.read(CheckpointFiles(checkpoint))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model_index.json", {"_class_name": "FluxPipeline"}, "_class_name is 'FluxPipeline'"),
        (
            "model_index.json",
            {"_class_name": "StableDiffusionXLPipeline"},
            "tokenizer_2 is missing",
        ),
        ("unet/config.json", {"addition_embed_type": "text_time"}, "addition_time_embed_dim is m"),
        ("unet/config.json", {"down_block_types": ["DownBlock2D"]}, "1 entries for 2 levels"),
        ("unet/config.json", {"down_block_types": []}, r"down_block_types=\[\] is not a list"),
        ("unet/config.json", {"addition_embed_type": "image"}, "addition_embed_type='image'"),
        ("unet/config.json", {"only_cross_attention": True}, "only_cross_attention=True"),
        ("unet/config.json", {"only_cross_attention": [False, True]}, r"only_cross_attention=\[F"),
        ("unet/config.json", {"num_attention_heads": 3}, "num_attention_heads="),
        (
            "unet/config.json",
            {"transformer_layers_per_block": [[1], 1]},
            "reverse_transformer_layers_",
        ),
        (
            "unet/config.json",
            {
                "transformer_layers_per_block": [[1, 2], 1],
                "reverse_transformer_layers_per_block": [1, 1],
            },
            "transformer_layers_per_block has 2 entries for a block of 1 layers",
        ),
        (
            "unet/config.json",
            {"time_cond_proj_dim": 7},
            "time_cond_proj_dim=7 is not an even",
        ),
        (
            "vae/config.json",
            {"latents_mean": [1, 2, 3, 4]},
            "latents_mean and latents_std must",
        ),
        (
            "vae/config.json",
            {"latents_mean": [0, 0, 0, 0], "latents_std": [1, 1, 1, 1]},
            "which only StableDiffusionXLPipeline reads",
        ),
        ("unet/config.json", {"cross_attention_dim": "wide"}, "cross_attention_dim='wide' is not"),
        ("unet/config.json", {"norm_num_groups": 7}, "norm_num_groups=7 does not divide"),
        ("unet/config.json", {"in_channels": 9}, "in_channels=9 is a UNet of inpainting"),
        ("unet/config.json", {"in_channels": 6}, "UNet in_channels"),
        (SCHEDULER, {"num_train_timesteps": "1000"}, "num_train_timesteps='1000' is not a whole"),
        (SCHEDULER, {"num_train_timesteps": 0}, "num_train_timesteps=0 is not a whole"),
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
        ("text_encoder/config.json", {"use_attention_mask": True}, "use_attention_mask=True"),
        ("text_encoder/config.json", {"model_type": "t5"}, "model_type='t5'"),
        ("text_encoder/config.json", {"configuration_files": ["a"]}, "configuration_files="),
    ],
)
def test_the_error_names_an_unsupported_field(
    checkpoint: Path, file: str, change: dict[str, Any], message: str
) -> None:
    path = checkpoint / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        Configs.read(CheckpointFiles(checkpoint))


def test_an_adapter_that_transformers_would_add_is_refused(checkpoint: Path) -> None:
    (checkpoint / "text_encoder" / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"^text_encoder/adapter_config\.json: transformers"):
        Configs.read(CheckpointFiles(checkpoint))


def test_the_digest_is_over_exactly_the_files_that_are_read(
    checkpoint: Path, cache_dir: Path
) -> None:
    def digest() -> str:
        files = CheckpointFiles(checkpoint)
        read_model(files).load_tokenizer(files)
        files.open_weights(["text_encoder", "unet", "vae"])
        return files.digest()

    for unread in ("README.md", "tokenizer/tokenizer.model", "unet/other.safetensors"):
        (checkpoint / unread).write_text("unread")
    before = digest()
    assert before.startswith("sha256:")
    assert before == load_engine(str(checkpoint), devices=1, cache_dir=cache_dir).info.digest
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    changing = set()
    for path in files:
        content = path.read_bytes()
        path.write_bytes(_other_bytes(content))
        if digest() != before:
            changing.add(path.relative_to(checkpoint).as_posix())
        path.write_bytes(content)
    assert changing == {
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "tokenizer/merges.txt",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",
        "unet/config.json",
        f"unet/{UNET}",
        "vae/config.json",
        f"vae/{UNET}",
    }


def _other_bytes(content: bytes) -> bytes:
    """Return other bytes that can be read: another version, last weight or blank at the end."""
    if content.startswith(b"#version: 0.2"):
        return content.replace(b"0.2", b"0.3", 1)
    return content[:-1] + bytes([content[-1] ^ 1]) if b"\0" in content else content + b"\n"

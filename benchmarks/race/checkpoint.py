"""Write a checkpoint that every peer can read.

It has the bundled text encoder, and a UNet and an autoencoder with random weights.

`python checkpoint.py FOLDER --bundled FOLDER [--channels 128,256,256]`, in the environment with
torch. The bundled model itself cannot be used: the tutorial's Flax UNet has 32 groups in every norm
and ignores the config's number.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel


def write(folder: Path, bundled: Path, channels: tuple[int, ...], pixels: int) -> None:
    torch.manual_seed(0)
    for part in ("text_encoder", "tokenizer"):
        shutil.copytree(bundled / part, folder / part)
    text = json.loads((bundled / "text_encoder" / "config.json").read_text())
    down = ["CrossAttnDownBlock2D"] * (len(channels) - 1) + ["DownBlock2D"]
    up = ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * (len(channels) - 1)
    UNet2DConditionModel(
        sample_size=pixels // 4,
        block_out_channels=channels,
        layers_per_block=1,
        down_block_types=down,
        up_block_types=up,
        cross_attention_dim=text["hidden_size"],
        attention_head_dim=8,
    ).save_pretrained(folder / "unet")
    AutoencoderKL(
        block_out_channels=(32, 64, 64),
        down_block_types=["DownEncoderBlock2D"] * 3,
        up_block_types=["UpDecoderBlock2D"] * 3,
        sample_size=pixels,
        latent_channels=4,
    ).save_pretrained(folder / "vae")
    DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    ).save_pretrained(folder / "scheduler")
    index = json.loads((bundled / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "DDIMScheduler"]
    (folder / "model_index.json").write_text(json.dumps(index))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bundled", type=Path, required=True)
    parser.add_argument("--channels", default="128,256,256")
    parser.add_argument("--pixels", type=int, default=64)
    options = parser.parse_args()
    channels = tuple(int(count) for count in options.channels.split(","))
    write(options.folder, options.bundled, channels, options.pixels)


if __name__ == "__main__":
    main()

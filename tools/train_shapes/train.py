"""Train the bundled model from random weights: `python -m tools.train_shapes.train`.

The result is a Stable Diffusion checkpoint in diffusers format. If the command is stopped, running
it again resumes from the last save. The stages are in modules of their own.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from transformers import CLIPTokenizer

from tools.train_shapes.autoencoder import train_autoencoder
from tools.train_shapes.captions import vocabulary
from tools.train_shapes.checkpoints import State
from tools.train_shapes.denoiser import BatchSampler, Networks, train_denoiser
from tools.train_shapes.export import export_checkpoint
from tools.train_shapes.latents import encode_scenes
from tools.train_shapes.process_group import join_process_group
from tools.train_shapes.tokenizer import write_tokenizer


def main() -> None:
    """Run the stages in order."""
    options = parse_options()
    group = join_process_group()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    autoencoder = train_autoencoder(
        options.work,
        minutes=options.autoencoder_minutes,
        device=device,
        seed=options.seed,
        group=group,
    )
    data = encode_scenes(autoencoder, options.work / "latents.pt", seed=options.seed, group=group)
    if group.is_leader:
        write_tokenizer(options.work / "tokenizer", vocabulary())
    group.barrier()
    tokenizer = CLIPTokenizer.from_pretrained(options.work / "tokenizer")
    networks = Networks(tokenizer).to(device)

    def export_average(averaged: State) -> None:
        mean = copy.deepcopy(networks)
        mean.load_state_dict(averaged)
        export_checkpoint(
            options.export, autoencoder=autoencoder, text_encoder=mean.text_encoder, unet=mean.unet
        )

    train_denoiser(
        BatchSampler(data, tokenizer, batch=options.batch // group.size, seed=options.seed),
        networks,
        options.work / "denoiser.pt",
        minutes=options.denoiser_minutes,
        group=group,
        export_average=export_average,
    )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the bundled model from random weights.")
    parser.add_argument(
        "--work", type=Path, default=Path("out/train-shapes"), help="folder of the training's state"
    )
    parser.add_argument(
        "--export", type=Path, default=Path("out/shapes"), help="folder of the finished checkpoint"
    )
    parser.add_argument("--autoencoder-minutes", type=float, default=10)
    parser.add_argument("--denoiser-minutes", type=float, default=85)
    parser.add_argument("--batch", type=int, default=32, help="scenes in a step of the denoiser")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Trains the bundled model from nothing: `python -m tools.train_shapes.train`.

Goes in: a folder to work in, a folder to export to, and a number of minutes. Comes out:
a Stable Diffusion checkpoint in diffusers format. Stopped at any time, the same command
goes on from the last save. Holds no training code of its own.
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
from tools.train_shapes.crew import join_crew
from tools.train_shapes.denoiser import Networks, Teacher, train_denoiser
from tools.train_shapes.export import export_checkpoint
from tools.train_shapes.latents import encode_scenes
from tools.train_shapes.tokenizer import write_tokenizer


def main() -> None:
    """Runs the stages in turn."""
    options = parse_options()
    crew = join_crew()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    autoencoder = train_autoencoder(
        options.work,
        minutes=options.autoencoder_minutes,
        device=device,
        seed=options.seed,
        crew=crew,
    )
    data = encode_scenes(autoencoder, options.work / "latents.pt", seed=options.seed, crew=crew)
    if crew.leads:
        write_tokenizer(options.work / "tokenizer", vocabulary())
    crew.wait()
    tokenizer = CLIPTokenizer.from_pretrained(options.work / "tokenizer")
    networks = Networks(tokenizer).to(device)

    def hand_on(averaged: State) -> None:
        mean = copy.deepcopy(networks)
        mean.load_state_dict(averaged)
        export_checkpoint(
            options.export, autoencoder=autoencoder, text_encoder=mean.text_encoder, unet=mean.unet
        )

    train_denoiser(
        Teacher(data, tokenizer, batch=options.batch // crew.size, seed=options.seed),
        networks,
        options.work / "denoiser.pt",
        minutes=options.denoiser_minutes,
        crew=crew,
        hand_on=hand_on,
    )


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Trains the bundled model from nothing.")
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

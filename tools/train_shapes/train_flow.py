"""Train the second bundled model: `python -m tools.train_shapes.train_flow`.

The result is a checkpoint of Z-Image in diffusers format. It has the autoencoder of the first
bundled model; the text encoder and the transformer start from random weights. If the command is
stopped, running it again resumes from the last save.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from transformers import Qwen2Tokenizer

from tools.train_shapes.captions import vocabulary
from tools.train_shapes.checkpoints import State
from tools.train_shapes.flow_denoiser import FlowNetworks, FlowSampler, train_flow
from tools.train_shapes.flow_export import export_flow_checkpoint
from tools.train_shapes.latents import read_or_encode
from tools.train_shapes.process_group import join_process_group
from tools.train_shapes.qwen_tokenizer import write_qwen_tokenizer


def main() -> None:
    """Encode the scenes, then train."""
    options = parse_options()
    group = join_process_group()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    options.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(options.seed)
    # Products of float32 in bfloat16: half the time where the CPU has instructions for it.
    torch.set_float32_matmul_precision("medium")
    autoencoder = AutoencoderKL.from_pretrained(options.autoencoder, torch_dtype=torch.float32)
    data = read_or_encode(
        autoencoder.to(device), options.work / "latents.pt", seed=options.seed, group=group
    )
    if group.is_leader:
        write_qwen_tokenizer(options.work / "tokenizer", vocabulary())
    group.barrier()
    tokenizer = Qwen2Tokenizer.from_pretrained(options.work / "tokenizer")
    networks = FlowNetworks(tokenizer).to(device)

    def export_average(averaged: State) -> None:
        mean = copy.deepcopy(networks)
        mean.load_state_dict(averaged)
        export_flow_checkpoint(
            options.export,
            autoencoder=autoencoder,
            text_encoder=mean.text_encoder,
            transformer=mean.transformer,
        )

    train_flow(
        FlowSampler(data, tokenizer, batch=options.batch // group.size, seed=options.seed),
        networks,
        options.work / "transformer.pt",
        minutes=options.minutes,
        group=group,
        export_average=export_average,
    )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the second bundled model.")
    parser.add_argument(
        "--work", type=Path, default=Path("out/train-flow"), help="folder of the training's state"
    )
    parser.add_argument(
        "--export", type=Path, default=Path("out/shapes-dit"), help="folder of the checkpoint"
    )
    parser.add_argument(
        "--autoencoder",
        type=Path,
        default=Path("worker/bundled/shapes/vae"),
        help="folder of a trained autoencoder whose latents are white",
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch", type=int, default=48, help="scenes in a step")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()

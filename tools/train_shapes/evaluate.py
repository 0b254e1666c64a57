"""Judge images against their captions: `python -m tools.train_shapes.evaluate`.

The images come from a checkpoint, through the whole fleet, the worker's engine or PyTorch
diffusers, or from a folder of PNG files with a `manifest.jsonl`. The command prints the share of
images with each attribute right, and one line of JSON. `--sheet` shows the images themselves.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from tests.support.judge import Score, judge, score
from tools.train_shapes.captions import read_caption
from tools.train_shapes.image_folder import CaptionedImage, contact_sheet, read_images, write_images
from tools.train_shapes.prompts import evaluation_prompts
from tools.train_shapes.scenes import ImageArray

ATTRIBUTES = ("background", "colour", "position", "size", "shape", "everything")
_BATCH = 16


class Pipeline(Protocol):
    """An object that generates images from prompts."""

    def draw(
        self, prompts: list[str], *, first_seed: int, guidance: float | None, steps: int | None
    ) -> list[ImageArray]:
        """Generate one image per prompt. None means the checkpoint's default."""


def main() -> None:
    """Generate or read the images, judge them, and print the result."""
    options = parse_options()
    captioned = read_images(options.images) if options.images else draw_all(options)
    scores = [score(judge(one.image), read_caption(one.prompt)) for one in captioned]
    print(table(scores))
    if options.faults:
        print_faults(captioned, scores)
    if options.sheet:
        contact_sheet(captioned[: options.sheet_size], columns=12).save(options.sheet)
    print(json.dumps({"images": len(scores), **parts_right(scores)}))


def draw_all(options: argparse.Namespace) -> list[CaptionedImage]:
    """Generate the evaluation prompts, each from its own seed."""
    with ExitStack() as running:
        return draw_with(open_pipeline(options, running), options)


def draw_with(pipeline: Pipeline, options: argparse.Namespace) -> list[CaptionedImage]:
    """Generate the prompts in batches, and print the time per image."""
    prompts = evaluation_prompts(options.count, held_out=not options.trained)
    captioned: list[CaptionedImage] = []
    started = time.perf_counter()
    for first in range(0, len(prompts), _BATCH):
        some = prompts[first : first + _BATCH]
        images = pipeline.draw(
            some, first_seed=first, guidance=options.guidance, steps=options.steps
        )
        captioned += [
            CaptionedImage(prompt=prompt, image=one)
            for prompt, one in zip(some, images, strict=True)
        ]
    print(f"{(time.perf_counter() - started) / len(prompts):.3f} s per image")
    if options.out:
        write_images(options.out, captioned)
    return captioned


def open_pipeline(options: argparse.Namespace, running: ExitStack) -> Pipeline:
    """Open the chosen pipeline. It is imported here, because judging a folder needs none."""
    if options.fleet:
        from tools.train_shapes.fleet_pipeline import FleetPipeline

        return running.enter_context(FleetPipeline(options.fleet))
    if options.engine:
        from tools.train_shapes.engine_pipeline import EnginePipeline

        return EnginePipeline(options.engine, batch=_BATCH, cache=options.cache)
    from tools.train_shapes.torch_pipeline import TorchPipeline

    return TorchPipeline(options.model, threads=options.threads)


def parts_right(scores: list[Score]) -> dict[str, float]:
    """Return the share of images with each attribute right, 0..1."""
    return {
        name: round(sum(getattr(one, name) for one in scores) / len(scores), 4)
        for name in ATTRIBUTES
    }


def table(scores: list[Score]) -> str:
    """Return the shares as a Markdown table. `everything` leaves the size out."""
    parts = parts_right(scores)
    header = "| images | " + " | ".join(ATTRIBUTES) + " |"
    rule = "|---" * (len(ATTRIBUTES) + 1) + "|"
    row = (
        f"| {len(scores)} | "
        + " | ".join(f"{100 * parts[name]:.1f} %" for name in ATTRIBUTES)
        + " |"
    )
    return "\n".join([header, rule, row])


def print_faults(captioned: list[CaptionedImage], scores: list[Score]) -> None:
    """Print what the judge saw in each wrong image."""
    for one, result in zip(captioned, scores, strict=True):
        if not result.everything:
            seen = judge(one.image)
            found = f"{seen.size} {seen.colour} {seen.shape} {seen.position}"
            print(f"{one.prompt}: {found} on {seen.background}")


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Judge images against their captions.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--images", type=Path, help="judge this folder of PNG files and manifest.jsonl"
    )
    source.add_argument(
        "--model", type=Path, help="generate with this checkpoint through PyTorch diffusers"
    )
    source.add_argument("--engine", help="generate with this model in the worker's engine")
    source.add_argument("--fleet", help="generate with this model through client, Redis and worker")
    parser.add_argument(
        "--cache", type=Path, default=Path("out/jax-cache"), help="the engine's cache folder"
    )
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument(
        "--trained", action="store_true", help="use trained combinations instead of held-out ones"
    )
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="store the images in this folder")
    parser.add_argument("--sheet", type=Path, help="write a contact sheet here")
    parser.add_argument("--sheet-size", type=int, default=96)
    parser.add_argument(
        "--faults", action="store_true", help="list what the judge saw in wrong images"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

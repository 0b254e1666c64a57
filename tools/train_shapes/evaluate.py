"""Judges pictures against their captions: `python -m tools.train_shapes.evaluate`.

Goes in: a checkpoint to draw with, through the worker's engine or through PyTorch diffusers,
or a folder that anything else filled (PNG files and a `manifest.jsonl`). Comes out: the part
right of each attribute, and one line of JSON. Does not show how the pictures look: that is
the sheet.
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
from tools.train_shapes.gallery import Exhibit, contact_sheet, read_gallery, write_gallery
from tools.train_shapes.prompts import evaluation_prompts
from tools.train_shapes.scenes import ImageArray

ATTRIBUTES = ("background", "colour", "position", "size", "shape", "everything")
_BATCH = 16


class Pipeline(Protocol):
    """Anything that draws prompts."""

    def draw(
        self, prompts: list[str], *, first_seed: int, guidance: float | None, steps: int | None
    ) -> list[ImageArray]:
        """One picture a prompt; None stands for the checkpoint's own default."""


def main() -> None:
    """Draws where asked to, judges, prints."""
    options = parse_options()
    exhibits = read_gallery(options.pictures) if options.pictures else draw_all(options)
    scores = [score(judge(one.picture), read_caption(one.prompt)) for one in exhibits]
    print(table(scores))
    if options.faults:
        print_faults(exhibits, scores)
    if options.sheet:
        contact_sheet(exhibits[: options.sheet_size], columns=12).save(options.sheet)
    print(json.dumps({"pictures": len(scores), **parts_right(scores)}))


def draw_all(options: argparse.Namespace) -> list[Exhibit]:
    """Draws the evaluation prompts, each from its own seed."""
    with ExitStack() as running:
        return draw_with(open_pipeline(options, running), options)


def draw_with(pipeline: Pipeline, options: argparse.Namespace) -> list[Exhibit]:
    """The prompts in batches, timed."""
    prompts = evaluation_prompts(options.count, held_out=not options.trained)
    exhibits: list[Exhibit] = []
    started = time.perf_counter()
    for first in range(0, len(prompts), _BATCH):
        some = prompts[first : first + _BATCH]
        pictures = pipeline.draw(
            some, first_seed=first, guidance=options.guidance, steps=options.steps
        )
        exhibits += [
            Exhibit(prompt=prompt, picture=one) for prompt, one in zip(some, pictures, strict=True)
        ]
    print(f"{(time.perf_counter() - started) / len(prompts):.3f} s a picture")
    if options.out:
        write_gallery(options.out, exhibits)
    return exhibits


def open_pipeline(options: argparse.Namespace, running: ExitStack) -> Pipeline:
    """What was asked for, imported only now: judging a folder needs none of it."""
    if options.fleet:
        from tools.train_shapes.fleet_pipeline import FleetPipeline

        return running.enter_context(FleetPipeline(options.fleet))
    if options.engine:
        from tools.train_shapes.engine_pipeline import EnginePipeline

        return EnginePipeline(options.engine, batch=_BATCH, cache=options.cache)
    from tools.train_shapes.torch_pipeline import TorchPipeline

    return TorchPipeline(options.model, threads=options.threads)


def parts_right(scores: list[Score]) -> dict[str, float]:
    """Part right of each attribute, 0..1."""
    return {
        name: round(sum(getattr(one, name) for one in scores) / len(scores), 4)
        for name in ATTRIBUTES
    }


def table(scores: list[Score]) -> str:
    """The parts as a Markdown table; `everything` leaves the size out, as the aims do."""
    parts = parts_right(scores)
    header = "| pictures | " + " | ".join(ATTRIBUTES) + " |"
    rule = "|---" * (len(ATTRIBUTES) + 1) + "|"
    row = (
        f"| {len(scores)} | "
        + " | ".join(f"{100 * parts[name]:.1f} %" for name in ATTRIBUTES)
        + " |"
    )
    return "\n".join([header, rule, row])


def print_faults(exhibits: list[Exhibit], scores: list[Score]) -> None:
    """What was seen where something else was asked for."""
    for one, result in zip(exhibits, scores, strict=True):
        if not result.everything:
            seen = judge(one.picture)
            found = f"{seen.size} {seen.colour} {seen.shape} {seen.position}"
            print(f"{one.prompt}: {found} on {seen.background}")


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Judges pictures against their captions.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--pictures", type=Path, help="judge this folder of PNG files and manifest.jsonl"
    )
    source.add_argument(
        "--model", type=Path, help="draw with this checkpoint through PyTorch diffusers"
    )
    source.add_argument("--engine", help="draw with this model in the worker's engine")
    source.add_argument(
        "--fleet", help="draw with this model through client, Redis and a Celery worker"
    )
    parser.add_argument("--cache", type=Path, default=Path("out/jax-cache"), help="of the engine")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument(
        "--trained", action="store_true", help="ask for trained combinations, not held-out ones"
    )
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="keep what was drawn in this folder")
    parser.add_argument("--sheet", type=Path, help="write a contact sheet here")
    parser.add_argument("--sheet-size", type=int, default=96)
    parser.add_argument("--faults", action="store_true", help="list what was seen instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()

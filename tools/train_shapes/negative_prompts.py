"""Measure the effect of negative prompts: `python -m tools.train_shapes.negative_prompts`.

For a prompt that names no colour, the command counts the colours in the images, without a negative
prompt and with one colour as the negative prompt, from the same seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tests.support.judge import judge
from tools.train_shapes.image_folder import CaptionedImage, contact_sheet
from tools.train_shapes.torch_pipeline import TorchPipeline

PROMPT = "a circle on a white background"
_BATCH = 16


def main() -> None:
    """Generate from the same seeds without and with negative prompts, and count colours."""
    options = parse_options()
    pipeline = TorchPipeline(options.model, threads=options.threads)
    sheet: list[CaptionedImage] = []
    for negative in ("", *options.negative):
        captioned = draw_with(pipeline, options, negative)
        seen = Counter(judge(one.image).colour for one in captioned)
        print(f"without {negative or 'anything'}: {dict(seen.most_common())}")
        sheet += captioned[:12]
    if options.sheet:
        contact_sheet(sheet, columns=12).save(options.sheet)


def draw_with(
    pipeline: TorchPipeline, options: argparse.Namespace, negative: str
) -> list[CaptionedImage]:
    """Generate with one negative prompt. The prompt and the seeds are the same in every call."""
    captioned: list[CaptionedImage] = []
    for first in range(0, options.count, _BATCH):
        images = pipeline.draw(
            [PROMPT] * _BATCH,
            first_seed=first,
            guidance=options.guidance,
            steps=options.steps,
            negative=negative,
        )
        label = f"{PROMPT} not {negative}" if negative else PROMPT
        captioned += [CaptionedImage(prompt=label, image=one) for one in images]
    return captioned


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure the effect of negative prompts.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--negative", nargs="+", default=["red", "blue"])
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sheet", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Shows that a negative prompt acts: `python -m tools.train_shapes.negatives --model FOLDER`.

Goes in: a checkpoint. Comes out: how often each colour is painted for a prompt that
names none, without and with one colour as the negative prompt, from the same seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from tests.support.judge import judge
from tools.train_shapes.gallery import Exhibit, contact_sheet
from tools.train_shapes.torch_pipeline import TorchPipeline

PROMPT = "a circle on a white background"
_BATCH = 16


def main() -> None:
    """Draws twice from the same seeds and counts colours."""
    options = parse_options()
    pipeline = TorchPipeline(options.model, threads=options.threads)
    sheet: list[Exhibit] = []
    for negative in ("", *options.negative):
        exhibits = draw_with(pipeline, options, negative)
        seen = Counter(judge(one.picture).colour for one in exhibits)
        print(f"without {negative or 'anything'}: {dict(seen.most_common())}")
        sheet += exhibits[:12]
    if options.sheet:
        contact_sheet(sheet, columns=12).save(options.sheet)


def draw_with(pipeline: TorchPipeline, options: argparse.Namespace, negative: str) -> list[Exhibit]:
    """The same prompt and seeds each time; only the negative prompt differs."""
    exhibits: list[Exhibit] = []
    for first in range(0, options.count, _BATCH):
        pictures = pipeline.draw(
            [PROMPT] * _BATCH,
            first_seed=first,
            guidance=options.guidance,
            steps=options.steps,
            negative=negative,
        )
        label = f"{PROMPT} not {negative}" if negative else PROMPT
        exhibits += [Exhibit(prompt=label, picture=one) for one in pictures]
    return exhibits


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Shows that a negative prompt acts.")
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

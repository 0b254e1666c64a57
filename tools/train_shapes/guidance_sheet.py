"""Write the README's second sheet: `python -m tools.train_shapes.guidance_sheet docs/guidance.png`.

It shows the same prompts and seeds at guidance 1, 3 and 7.5, and images with negative prompts. All
come from the whole system.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.train_shapes.fleet_pipeline import FleetPipeline
from tools.train_shapes.image_folder import CaptionedImage, contact_sheet

PROMPTS = [
    "a large yellow star in the center on a purple background",
    "a small red circle on the left on a blue background",
    "a white triangle in the center on a red background",
    "a large blue heart on the right on a white background",
]
ANY_COLOUR = "a circle on a white background"
NEGATIVES = ["", "red", "purple", "red, purple"]
COLUMNS = 4


def main(target: Path) -> None:
    captioned: list[CaptionedImage] = []
    with FleetPipeline("shapes") as fleet:
        for guidance in (1.0, 3.0, 7.5):
            for prompt, image in zip(
                PROMPTS, fleet.draw(PROMPTS, first_seed=4, guidance=guidance), strict=True
            ):
                captioned.append(CaptionedImage(prompt=f"{guidance:g}: {prompt}", image=image))
        for negative in NEGATIVES:
            label = f"{ANY_COLOUR}; negative: {negative or 'none'}"
            images = fleet.draw([ANY_COLOUR] * COLUMNS, first_seed=0, negative_prompt=negative)
            captioned += [CaptionedImage(prompt=label, image=image) for image in images]
    contact_sheet(captioned, columns=COLUMNS).save(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The README's second sheet: `python -m tools.train_shapes.sheets docs/guidance.png`.

Goes in: nothing. Comes out: the same prompts and seeds at guidance 1, 3 and 7.5, and with negative
prompts, drawn through the whole system.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools.train_shapes.fleet_pipeline import FleetPipeline
from tools.train_shapes.gallery import Exhibit, contact_sheet

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
    exhibits: list[Exhibit] = []
    with FleetPipeline("shapes") as fleet:
        for guidance in (1.0, 3.0, 7.5):
            for prompt, picture in zip(
                PROMPTS, fleet.draw(PROMPTS, first_seed=4, guidance=guidance), strict=True
            ):
                exhibits.append(Exhibit(prompt=f"{guidance:g}: {prompt}", picture=picture))
        for negative in NEGATIVES:
            label = f"{ANY_COLOUR}; negative: {negative or 'none'}"
            pictures = fleet.draw([ANY_COLOUR] * COLUMNS, first_seed=0, negative_prompt=negative)
            exhibits += [Exhibit(prompt=label, picture=picture) for picture in pictures]
    contact_sheet(exhibits, columns=COLUMNS).save(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

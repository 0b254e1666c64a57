"""List the images of the second trained model that diffusers and the engine make."""

from typing import Final

PROMPTS: Final = [
    "a large red circle in the center on a blue background",
    "a medium yellow star on the left on a purple background",
    "a large white heart at the top on a black background",
    "a medium blue square at the bottom on a yellow background",
]
STEPS: Final = 8
GUIDANCE: Final = 2.0

"""The jobs with a LoRA that diffusers and the engine run. It needs neither JAX nor PyTorch."""

from typing import Final

PROMPTS: Final = [
    "a large red circle in the center on a blue background",
    "a large yellow star on the left on a purple background",
]
SCALE: Final = 0.8
STEPS: Final = 8
GUIDANCE: Final = 3.0

"""The LoRA files that tests merge into checkpoints. It needs neither JAX nor PyTorch."""

from collections.abc import Mapping
from typing import Final

CASES: Final[Mapping[str, tuple[str, dict[str, float]]]] = {
    "kohya": ("older", {"kohya": 0.8}),
    "peft": ("older", {"peft": 1.0}),
    "processors": ("older", {"processors": -0.5}),
    "two": ("older", {"kohya": 0.5, "peft": 0.7}),
    "xl": ("xl", {"kohya_xl": 1.3}),
    "xl_peft": ("xl", {"peft_xl": 0.6}),
}
"""By case: the checkpoint, and the scale of each file."""

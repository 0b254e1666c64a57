"""Prompts with weights, and beyond the length of a text encoder, that tests compare."""

from typing import Final

LONG: Final = ", ".join(["a red circle above a blue square"] * 4 + ["(a green star:1.4)"] * 2)
"""Two chunks of 75 tokens."""
CASES: Final = (
    ("a (red:1.5) circle above a [blue] square", ""),
    ("((a green star)) beside (a circle:0.4) and (nothing", "(blurry:1.3), [grey]"),
    (", ".join([LONG] * 3), "blue"),
    (LONG, "grey"),
    ("a small circle", LONG),
    (LONG + ", " + LONG, r"\(grey\) and [(dark:1.2) things"),
)
"""Prompt and negative prompt."""
MAX_CHUNKS: Final = 3

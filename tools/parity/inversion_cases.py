"""The textual inversions that tests load, and prompts with their tokens. It needs no library."""

from collections.abc import Mapping
from typing import Final

FILES: Final[Mapping[str, Mapping[str, str]]] = {
    "older": {"<dog>": "diffusers", "CharTurner": "web_ui"},
    "newer": {"style-b": "half"},
    "xl": {"<sks>": "xl", "<other>": "xl_one"},
}
"""By checkpoint: the file of each token, in the order of loading."""
PROMPTS: Final[Mapping[str, tuple[str, ...]]] = {
    "older": (
        "a red <dog> on blue",
        "CharTurner circle, <dog><dog>",
        "a charturner, a CHARTURNER and a CharTurner_2",
        "<DOG> red",
    ),
    "newer": ("a style-b circle", "astyle-bcircle style-b_1"),
    "xl": ("a <sks> circle on <other>", "a red circle, <other>", "<sks>!"),
}
NEGATIVES: Final[Mapping[str, tuple[str, str]]] = {
    "older": ("red CharTurner", "blue"),
    "newer": ("", "style-b"),
    "xl": ("<sks>", "blue"),
}
"""For the first two prompts."""

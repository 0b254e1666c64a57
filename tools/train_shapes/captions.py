"""Captions of scenes.

Input: a scene and a random generator. Output: one line of lower-case English. This module draws
nothing. A caption may omit a medium size and a central position. A partial caption names only some
attributes, from which the model learns what negative prompts mean.
"""

from __future__ import annotations

import re

import numpy as np

from tools.train_shapes.scenes import DIRECTIONS, PALETTE, RADII, SHAPES, Combination, Scene

PLACES: dict[str, tuple[str, ...]] = {
    "left": ("on the left",),
    "right": ("on the right",),
    "top": ("at the top",),
    "bottom": ("at the bottom",),
    "center": ("in the center", "in the middle"),
}

EXTRA_WORDS = (
    "a an the on in at of with and , . background shape picture drawing painting photo image "
    "big tiny huge gray grey brown cyan dog cat house no not one two"
)
"""Words that training rarely or never uses. Each is one token, so that prompts stay short."""

_PLACE = "|".join(place for places in PLACES.values() for place in places)
_PLAIN = re.compile(
    rf"an? (?P<size>{'|'.join(RADII)}) (?P<colour>{'|'.join(PALETTE)})"
    rf" (?P<shape>{'|'.join(SHAPES)}) (?P<place>{_PLACE})"
    rf" on an? (?P<background>{'|'.join(PALETTE)}) background"
)


def vocabulary() -> list[str]:
    """Return every word that must be one token, in a fixed order."""
    phrases = [*PALETTE, *SHAPES, *RADII, *DIRECTIONS, *EXTRA_WORDS.split()]
    for places in PLACES.values():
        phrases += [word for place in places for word in place.split()]
    return list(dict.fromkeys(phrases))


def plain_caption(scene: Scene) -> str:
    """Return the first phrasing of a full caption, which evaluation uses."""
    return _sentence(
        _thing(scene, scene.size), PLACES[scene.position][0], scene.combination.background
    )


def caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return a random phrasing of a full caption."""
    size = "" if scene.size == "medium" and rng.random() < 0.5 else scene.size
    places = PLACES[scene.position]
    place = places[int(rng.integers(len(places)))]
    if scene.position == "center" and rng.random() < 0.3:
        place = ""
    thing, background = _thing(scene, size), scene.combination.background
    style = rng.random()
    if style < 0.6:
        return _sentence(thing, place, background)
    if style < 0.8:
        return " ".join(f"a {background} background with {thing} {place}".split())
    short = thing.removeprefix("a ")
    return ", ".join(part for part in (short, place, f"{background} background") if part)


def read_caption(text: str) -> Scene:
    """Return the scene that a caption of the first phrasing names.

    Raises:
        ValueError: the text has another form.
    """
    found = _PLAIN.fullmatch(text)
    if found is None:
        raise ValueError(f"not a caption of the first phrasing: {text!r}")
    position = next(name for name, places in PLACES.items() if found["place"] in places)
    return Scene(
        combination=Combination(
            colour=found["colour"], shape=found["shape"], background=found["background"]
        ),
        size=found["size"],
        position=position,
    )


def partial_caption(scene: Scene, rng: np.random.Generator) -> str:
    """Return a caption that names one or two attributes and leaves the others open."""
    combination = scene.combination
    choices = (
        combination.colour,
        f"{combination.background} background",
        f"a {combination.shape}",
        PLACES[scene.position][0],
        f"a {combination.colour} {combination.shape}",
        f"a {combination.shape} on a {combination.background} background",
        f"a {combination.colour} shape on a {combination.background} background",
        f"a {scene.size} {combination.shape}",
    )
    return choices[int(rng.integers(len(choices)))]


def _thing(scene: Scene, size: str) -> str:
    words = ["a", size, scene.combination.colour, scene.combination.shape]
    if not size and scene.combination.colour[0] in "aeiou":
        words[0] = "an"
    return " ".join(word for word in words if word)


def _sentence(thing: str, place: str, background: str) -> str:
    article = "an" if background[0] in "aeiou" else "a"
    return " ".join(f"{thing} {place} on {article} {background} background".split())

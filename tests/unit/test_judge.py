"""The judge is right on drawn scenes, so that its verdicts on generated images can be trusted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tests.support.judge import Score, judge, score
from tools.train_shapes.scenes import (
    SIDE,
    Combination,
    ImageArray,
    Scene,
    combinations,
    draw,
    is_held_out,
    sample_jitter,
    sample_scene,
    split,
)

SCENES = 300


def scores_of(images: list[ImageArray], scenes: list[Scene]) -> list[Score]:
    return [score(judge(image), scene) for image, scene in zip(images, scenes, strict=True)]


def part_right(scores: list[Score], attribute: str) -> float:
    return sum(bool(getattr(one, attribute)) for one in scores) / len(scores)


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = np.random.default_rng(7)
    return [sample_scene(rng, combinations()) for _ in range(SCENES)]


@pytest.fixture(scope="module")
def drawn_scores(scenes: list[Scene]) -> list[Score]:
    rng = np.random.default_rng(8)
    return scores_of([draw(scene, sample_jitter(rng)) for scene in scenes], scenes)


@pytest.mark.parametrize(
    "attribute", ["background", "colour", "position", "size", "shape", "everything"]
)
def test_the_judge_is_right_on_at_least_99_in_100_drawn_scenes(
    drawn_scores: list[Score], attribute: str
) -> None:
    assert part_right(drawn_scores, attribute) >= 0.99


def test_the_judge_is_right_on_noisy_images(scenes: list[Scene]) -> None:
    rng = np.random.default_rng(9)
    noisy = [
        np.clip(draw(scene) + rng.normal(0, 12, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        for scene in scenes[:150]
    ]
    assert part_right(scores_of(noisy, scenes[:150]), "everything") >= 0.97


def test_the_overlap_in_a_flat_image_is_small() -> None:
    verdict = judge(np.full((SIDE, SIDE, 3), 250, np.uint8))
    assert verdict.background == "white"
    assert verdict.overlap < 0.2


def test_each_attribute_is_judged_separately() -> None:
    expected = Scene(
        combination=Combination(colour="red", shape="circle", background="blue"),
        size="large",
        position="left",
    )
    other = Scene(
        combination=Combination(colour="red", shape="square", background="white"),
        size="large",
        position="left",
    )
    seen = score(judge(draw(other)), expected)
    assert (seen.colour, seen.position, seen.size) == (True, True, True)
    assert (seen.background, seen.shape, seen.everything) == (False, False, False)


def test_the_split_holds_out_about_a_fifth_and_every_name_is_trained() -> None:
    trained, held_out = split(held_out=False), split(held_out=True)
    assert 0.15 < len(held_out) / len(combinations()) < 0.25
    assert not any(is_held_out(one) for one in trained)
    for attribute in ("colour", "shape", "background"):
        assert Counter(getattr(one, attribute) for one in trained).keys() == {
            getattr(one, attribute) for one in combinations()
        }

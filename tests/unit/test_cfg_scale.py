"""The guidance scales of the web UI are converted for models that count them from 0."""

from typing import Any

import pytest

from imagefleet.shared.jobs.cfg_scale import cfg_scale_of, guidance_scale_of
from imagefleet.shared.jobs.offers import Offer, unguided_scale_of
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.jobs.attempt import offer_of


@pytest.mark.parametrize(
    ("cfg_scale", "expected"),
    [(5, 4.0), ("7.5", 6.5), (1, 0.0), (0.5, 0.0), (0, 0.0), (51, 50.0)],
)
def test_one_less_is_the_same_guidance_of_a_model_that_counts_from_0(
    cfg_scale: Any, expected: float
) -> None:
    assert guidance_scale_of(cfg_scale, 0.0) == expected


@pytest.mark.parametrize("wrong", [-1, "much", None, True, [5]])
def test_what_is_no_scale_stays_and_is_refused_as_it_was_given(wrong: Any) -> None:
    assert guidance_scale_of(wrong, 0.0) is wrong


def test_the_scale_of_other_models_stays() -> None:
    assert guidance_scale_of("7.5", 1.0) == "7.5"
    assert guidance_scale_of(0, 1.0) == 0
    assert cfg_scale_of(7.5, 1.0) == 7.5


@pytest.mark.parametrize("scale", [0.0, 4.0, 9.5])
def test_converting_there_and_back_changes_nothing(scale: float) -> None:
    assert guidance_scale_of(cfg_scale_of(scale, 0.0), 0.0) == scale


def test_an_offer_says_where_guidance_begins() -> None:
    offer = offer_of(FakeEngine().info)
    assert "unguided_scale" not in offer.model_dump_json()  # as of older workers
    flow = Offer.model_validate_json(
        offer.model_copy(update={"unguided_scale": 0.0}).model_dump_json()
    )
    offers = {DEFAULT_MODEL: flow, "sd": offer}
    assert [unguided_scale_of(offers, name) for name in (None, "sd", "gone")] == [0.0, 1.0, 1.0]

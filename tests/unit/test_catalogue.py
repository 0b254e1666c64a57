"""The catalogue keeps what workers announced, under the model's name and as the default."""

from typing import Any

import fakeredis
import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.model import JobRequest
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.engines import INFO


@pytest.fixture
def offers() -> dict[str, Offer]:
    catalogue = OfferRegistry(fakeredis.FakeRedis(decode_responses=True), "ns")
    assert catalogue.offers() == {}
    fresh = OfferRegistry(catalogue._redis, "ns")
    fresh.announce(offer_of(INFO))
    return fresh.offers()


def test_an_offer_comes_back_as_it_was_announced(offers: dict[str, Offer]) -> None:
    assert offers == {"tiny": offer_of(INFO), "default": offer_of(INFO)}


def test_without_offers_everything_valid_is_admitted() -> None:
    admit(JobRequest(prompt="a", height=8, width=8, model="any", scheduler="any"), {})


def test_the_limits_of_an_offer_are_inclusive(offers: dict[str, Offer]) -> None:
    admit(JobRequest(prompt="a", num_inference_steps=50, height=64, width=128), offers)
    with pytest.raises(InvalidRequest, match="num_inference_steps=51: must be at most 50"):
        admit(JobRequest(prompt="a", num_inference_steps=51), offers)


def test_height_and_width_are_not_interchangeable(offers: dict[str, Offer]) -> None:
    with pytest.raises(InvalidRequest, match="'128x64': not a declared shape of tiny"):
        admit(JobRequest(prompt="a", height=128, width=64), offers)


def test_what_was_not_asked_for_is_the_model_s_default() -> None:
    [spec] = plan_attempt("j", JobRequest(prompt="a", seed=9), INFO).specs
    assert (spec.num_inference_steps, spec.guidance_scale, spec.scheduler) == (4, 3.0, "ddim")
    zero = JobRequest(prompt="a", guidance_scale=0, num_inference_steps=1)
    [spec] = plan_attempt("j", zero, INFO).specs
    assert (spec.guidance_scale, spec.num_inference_steps) == (0, 1)


def test_an_image_must_leave_a_step_to_paint(offers: dict[str, Offer]) -> None:
    def asked(**parameters: Any) -> None:
        admit(JobRequest(prompt="a", image="a.png", **parameters), offers)

    asked(num_inference_steps=10, strength=0.1)
    asked(num_inference_steps=2)  # 0.8 of them by default
    with pytest.raises(InvalidRequest, match=r"strength=0\.09: leaves none of 10 steps"):
        asked(num_inference_steps=10, strength=0.09)
    with pytest.raises(InvalidRequest, match=r"strength=0\.8: leaves none of 1 steps"):
        asked(num_inference_steps=1)

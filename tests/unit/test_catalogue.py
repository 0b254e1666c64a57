"""The registry keeps each offer under its model's name and as the default; requests are checked
against it."""

from typing import Any

import fakeredis
import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.jobs.attempt import offer_of, plan_attempt
from tests.support.engines import INFO


@pytest.fixture
def offers() -> dict[str, Offer]:
    registry = OfferRegistry(fakeredis.FakeRedis(decode_responses=True), "ns")
    assert registry.offers() == {}
    fresh = OfferRegistry(registry._redis, "ns")
    fresh.announce(offer_of(INFO))
    return fresh.offers()


def test_an_announced_offer_is_read_unchanged(offers: dict[str, Offer]) -> None:
    assert offers == {"tiny": offer_of(INFO), "default": offer_of(INFO)}


def test_without_offers_every_valid_request_is_admitted() -> None:
    admit(JobRequest(prompt="a", height=8, width=8, model="any", scheduler="any"), {})


def test_the_limits_of_an_offer_are_inclusive(offers: dict[str, Offer]) -> None:
    admit(JobRequest(prompt="a", num_inference_steps=50, height=64, width=128), offers)
    with pytest.raises(InvalidRequest, match="num_inference_steps=51: must be at most 50"):
        admit(JobRequest(prompt="a", num_inference_steps=51), offers)


def test_height_and_width_are_not_interchangeable(offers: dict[str, Offer]) -> None:
    with pytest.raises(InvalidRequest, match="'128x64': is not a declared shape of tiny"):
        admit(JobRequest(prompt="a", height=128, width=64), offers)


def test_omitted_parameters_take_the_model_s_defaults() -> None:
    [spec] = plan_attempt("j", JobRequest(prompt="a", seed=9), INFO).specs
    assert (spec.num_inference_steps, spec.guidance_scale, spec.scheduler) == (4, 3.0, "ddim")
    zero = JobRequest(prompt="a", guidance_scale=0, num_inference_steps=1)
    [spec] = plan_attempt("j", zero, INFO).specs
    assert (spec.guidance_scale, spec.num_inference_steps) == (0, 1)


def test_strength_must_leave_a_step_to_denoise(offers: dict[str, Offer]) -> None:
    def check(**parameters: Any) -> None:
        admit(JobRequest(prompt="a", image="a.png", **parameters), offers)

    check(num_inference_steps=10, strength=0.1)
    check(num_inference_steps=2)  # the default strength is 0.8
    with pytest.raises(InvalidRequest, match=r"strength=0\.09: leaves none of 10 steps"):
        check(num_inference_steps=10, strength=0.09)
    with pytest.raises(InvalidRequest, match=r"strength=0\.8: leaves none of 1 steps"):
        check(num_inference_steps=1)

"""The registry keeps each offer under its model's name and as the default; requests are checked
against it."""

from dataclasses import replace
from typing import Any

import fakeredis
import pytest

from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.default_strengths import (
    NO_STRENGTH,
    STABLE_DIFFUSION_XL,
    DefaultStrengths,
)
from imagefleet.shared.jobs.offers import Offer, OfferRegistry
from imagefleet.shared.jobs.redis_keys import offers_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.contract.image_use import ImageUse
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


@pytest.mark.parametrize("others", [("a",), ("a", "unreadable")])
def test_a_model_takes_the_place_of_an_unreadable_default_only_if_it_is_the_one(
    others: tuple[str, ...],
) -> None:
    client = fakeredis.FakeRedis(decode_responses=True)
    registry = OfferRegistry(client, "ns")
    for name in others:
        registry.announce(offer_of(replace(INFO, name=name)))
    for name in ("default", "unreadable")[: len(others)]:
        client.hset(offers_key("ns"), name, "no JSON")
    assert ("default" in registry.offers()) == (others == ("a",))


def test_without_offers_every_valid_request_is_admitted() -> None:
    admit(JobRequest(prompt="a", height=8, width=8, model="any", scheduler="any"), {})


def test_the_limits_of_an_offer_are_inclusive(offers: dict[str, Offer]) -> None:
    admit(JobRequest(prompt="a", num_inference_steps=50, height=64, width=128), offers)
    with pytest.raises(InvalidRequest, match=r"must be at most 50 with the model tiny$"):
        admit(JobRequest(prompt="a", num_inference_steps=51), offers)


def test_height_and_width_are_not_interchangeable(offers: dict[str, Offer]) -> None:
    with pytest.raises(
        InvalidRequest, match="'128x64': the model tiny does not serve this shape; it serves"
    ):
        admit(JobRequest(prompt="a", height=128, width=64), offers)


@pytest.mark.parametrize(
    ("scheduler", "sentence"),
    [
        ("K_EULER", "is called euler here"),
        (
            "UniPC",
            "is called unipc here, and is not offered by the model tiny; it offers ddim, euler",
        ),
        ("best", "is not offered by the model tiny; it offers ddim, euler"),
    ],
)
def test_a_scheduler_that_is_not_offered_is_named(
    offers: dict[str, Offer], scheduler: str, sentence: str
) -> None:
    known = {"schedulers": ("ddim", "euler")}
    offers = {name: offer.model_copy(update=known) for name, offer in offers.items()}
    with pytest.raises(InvalidRequest) as refused:
        admit(JobRequest(prompt="a", scheduler=scheduler), offers)
    assert refused.value.limit == sentence


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
    with pytest.raises(InvalidRequest, match=r"strength=0\.8: leaves none of 1 step to"):
        check(num_inference_steps=1)
    check(num_inference_steps=1, mask_image="m.png")  # with a mask it is 1


def test_the_default_strength_depends_on_the_model_and_on_a_mask() -> None:
    plain, masked = (
        JobRequest(prompt="a", image="a.png"),
        JobRequest(prompt="a", image="a.png", mask_image="m.png"),
    )
    for use, expected in (
        (ImageUse(), (0.8, 1.0)),
        (ImageUse(default_strengths=STABLE_DIFFUSION_XL), (0.3, 0.9999)),
    ):
        defaults = _offers(use)["default"].default_strengths
        assert (plain.denoised_share(defaults), masked.denoised_share(defaults)) == expected


def test_a_model_may_run_a_step_of_which_the_strength_leaves_a_part() -> None:
    """diffusers' pipelines of flow models skip int(9 - 9 x 0.6) = 3 steps, others 9 - int(5.4)."""
    request = JobRequest(prompt="a", image="a.png", strength=0.6)
    for rounds_up, steps in ((True, 6), (False, 5)):
        use = ImageUse(default_strengths=DefaultStrengths(0.6, 1.0, rounds_up))
        offer = Offer.model_validate_json(_offers(use)["default"].model_dump_json())
        assert request.denoised_steps(9, offer.default_strengths) == steps
    hardly = request.model_copy(update={"strength": 0.01})
    admit(hardly, _offers(ImageUse(default_strengths=DefaultStrengths(0.6, 1.0, rounds_up=True))))


def test_an_offer_of_an_older_release_has_one_strength_for_both() -> None:
    offer = _offers(ImageUse(default_strengths=STABLE_DIFFUSION_XL))["default"]
    older = Offer.model_validate_json(offer.model_dump_json(exclude={"mask_strength"}))
    assert older.default_strengths == DefaultStrengths(0.3, 0.3)
    edits = _offers(ImageUse(default_strengths=NO_STRENGTH))["default"]
    assert Offer.model_validate_json(edits.model_dump_json()).default_strengths == NO_STRENGTH


def _offers(image_use: ImageUse) -> dict[str, Offer]:
    return {"default": offer_of(replace(INFO, image_use=image_use))}


def test_a_model_that_inpaints_needs_an_image_and_a_mask() -> None:
    offers = _offers(ImageUse(required=("image", "mask_image")))
    missing = "is missing; every job of the model tiny needs image and mask_image"
    with pytest.raises(InvalidRequest, match=f"^image=None: {missing}"):
        admit(JobRequest(prompt="a"), offers)
    with pytest.raises(InvalidRequest, match=f"^mask_image=None: {missing}"):
        admit(JobRequest(prompt="a", image="a.png"), offers)
    masked = JobRequest(prompt="a", image="a.png", mask_image="m.png", num_inference_steps=1)
    admit(masked, offers)  # the default strength of this model leaves the one step
    admit(JobRequest(prompt="a"), offers, images_come_later=True)
    with pytest.raises(
        InvalidRequest, match=r"image_guidance_scale=2\.0: is not a parameter of the model tiny"
    ):
        admit(masked.model_copy(update={"image_guidance_scale": 2.0}), offers)


def test_a_model_that_edits_images_takes_no_mask_and_no_strength() -> None:
    edits = ImageUse(
        required=("image",), default_strengths=NO_STRENGTH, default_image_guidance_scale=1.5
    )
    offers = _offers(edits)
    admit(JobRequest(prompt="a", image="a.png", image_guidance_scale=0), offers)
    with pytest.raises(
        InvalidRequest, match=r"strength=0\.5: is not a parameter of the model tiny"
    ):
        admit(JobRequest(prompt="a", image="a.png", strength=0.5), offers)
    with pytest.raises(
        InvalidRequest, match=r"mask_image='m\.png': is not a parameter of the model tiny"
    ):
        admit(JobRequest(prompt="a", image="a.png", mask_image="m.png"), offers)
    info = replace(INFO, image_use=edits)
    [spec] = plan_attempt("j", JobRequest(prompt="a", image="a.png"), info).specs
    assert spec.image_guidance_scale == 1.5
    [spec] = plan_attempt("j", JobRequest(prompt="a", image="a.png"), INFO).specs
    assert spec.image_guidance_scale is None


def test_the_image_guidance_scale_is_sent_only_if_it_is_given() -> None:
    request = JobRequest(prompt="a", image="a.png")
    assert "image_guidance_scale" not in request.model_dump(mode="json")
    given = JobRequest(prompt="a", image="a.png", image_guidance_scale=0)
    assert given.model_dump(mode="json")["image_guidance_scale"] == 0

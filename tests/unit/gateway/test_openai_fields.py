"""Errors name the fields of OpenAI's API as the caller wrote them, and edits say what they lack."""

from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from imagefleet.producer.gateway.jobs.masks import check_proportions
from imagefleet.producer.gateway.openai.edit_images import edit_of_json
from imagefleet.producer.gateway.openai.field_names import in_openai_names
from imagefleet.producer.gateway.openai.images_request import ImagesRequest
from imagefleet.producer.gateway.problems import Problem
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.admission import admit
from imagefleet.shared.jobs.offers import Offer
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.jobs.attempt import offer_of
from tests.support.engines import INFO

_SHAPES = ((64, 64), (96, 64))


@pytest.fixture
def offer() -> Offer:
    return offer_of(INFO).model_copy(update={"shapes": _SHAPES})


def _refused(fields: dict[str, Any], offer: Offer) -> Problem:
    parameters = ImagesRequest.parse({"prompt": "a", **fields}).parameters({})
    with pytest.raises(InvalidRequest) as refused:
        admit(JobRequest.parse(parameters), {"default": offer})
    return in_openai_names(refused.value, fields, offer)


def test_a_size_is_named_with_the_width_first(offer: Offer) -> None:
    problem = _refused({"size": "96x64"}, offer)  # the fleet makes 64x96, height 96
    assert (problem.status, problem.field) == (400, "size")
    assert problem.message == (
        "size='96x64': the model tiny does not make this size; it makes 64x64, 64x96"
    )


def test_a_side_of_a_size_that_no_model_could_make_is_named(offer: Offer) -> None:
    problem = _refused({"size": "64x1"}, offer)
    assert problem.message == "size='64x1': its height must be between 8 and 2048 pixels"


def test_a_shape_that_was_asked_for_in_our_names_is_named_so(offer: Offer) -> None:
    problem = _refused({"height": 64, "width": 96}, offer)
    assert (problem.field, "it serves 64x64, 96x64" in problem.message) == ("height x width", True)


@pytest.mark.parametrize(
    ("name", "meant"), [("sise", "size"), ("num_inference_step", "num_inference_steps")]
)
def test_a_misspelled_field_is_answered_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(Problem, match=f"did you mean {meant}") as refused:
        ImagesRequest.parse({"prompt": "a", name: "64x64"})
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({}, "prompt=None: is required"), ({"prompt": 3}, "prompt=3: must be text")],
)
def test_what_is_wrong_is_said_in_words_of_json(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Problem) as refused:
        ImagesRequest.parse(fields)
    assert refused.value.message == sentence


def test_no_caller_is_told_of_a_field_that_it_may_not_send() -> None:
    with pytest.raises(Problem, match="the parameters are prompt, model, n, size") as refused:
        ImagesRequest.parse({"prompt": "a", "colour": "red"})
    assert "callback_prediction" not in refused.value.message


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"image": "data:image/png;base64,AAAA"}, "image", "is called images here"),
        ({"images": []}, "images", "must be one image"),
        ({"images": ["https://a.example/a.png"]}, "images", 'an object with "image_url"'),
        ({"images": [{"image_url": "a", "file_id": "b"}]}, "images", 'an object with "image_url"'),
        (
            {"images": [{"file_id": "file-a"}], "mask": {"image_url": "https://a.example/a.png"}},
            "mask",
            "must be a data: URL, or the id of a file in file_id",
        ),
    ],
)
def test_an_edit_says_what_is_wrong_with_its_images(
    fields: dict[str, Any], field: str, sentence: str
) -> None:
    with pytest.raises(Problem) as refused:
        edit_of_json({"prompt": "a", **fields})
    assert (refused.value.field, sentence in refused.value.message) == (field, True)


def test_image_and_mask_may_be_files() -> None:
    fields = {"prompt": "a", "images": [{"file_id": "file-a"}], "mask": {"file_id": "file-b"}}
    assert edit_of_json(fields) == ({"prompt": "a"}, {"image": "file-a", "mask_image": "file-b"})


def _png(width: int, height: int) -> bytes:
    file = BytesIO()
    Image.new("RGBA", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("size", [(64, 64), (512, 512), (100, 101)])
def test_a_mask_may_be_smaller_or_larger_than_its_image(size: tuple[int, int]) -> None:
    check_proportions(_png(64, 64), _png(*size))


def test_a_mask_of_other_proportions_is_refused() -> None:
    with pytest.raises(Problem) as refused:
        check_proportions(_png(64, 64), _png(32, 64))
    assert refused.value.message == (
        "mask='32x64 pixels': must have the proportions of the image, 64x64 pixels"
    )

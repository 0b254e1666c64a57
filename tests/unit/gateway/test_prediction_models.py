"""The model of a prediction is found by each of its names, wherever the request gives it."""

import pytest

from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.predictions.prediction_request import PredictionRequest
from imagefleet.producer.gateway.problems import Problem

_MODELS = FleetModels(offers={}, aliases={"dall-e-3": "sd-1.4"})


def _model(model: object, version: str | None = None) -> object:
    fields = {"input": {"prompt": "a", "model": model}, "version": version}
    return PredictionRequest.parse(fields).job_parameters(_MODELS, None)["model"]


def test_an_input_may_name_the_model_as_a_version_does() -> None:
    assert _model("dall-e-3") == "sd-1.4"
    assert _model("openai/dall-e-3") == "sd-1.4"
    assert _model("dall-e-3", version="sd-1.4") == "sd-1.4"
    with pytest.raises(Problem, match="differs"):
        _model("dall-e-3", version="other")


def test_a_model_that_is_no_text_is_left_to_the_check_of_parameters() -> None:
    assert _model(7) == 7

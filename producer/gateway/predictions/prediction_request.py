"""Turn the body of a request for a prediction into the parameters of a job.

`input` has the parameters of a job, in diffusers' names, or those that Replicate's models of images
use: https://replicate.com/docs/reference/http.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from imagefleet.producer.gateway.predictions.models import FleetModels
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.foreign_names import hint, scheduler_called
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS
from imagefleet.shared.jobs.prediction import WEBHOOK_EVENTS

THEIR_NAMES: Final = {
    "num_outputs": "num_images_per_prompt",
    "mask": "mask_image",
    "prompt_strength": "strength",
    "output_format": "format",
}
"""The parameters of Replicate's models that have other names here."""
_WEBHOOKS: Final = ("webhook", "webhook_completed")
_NO_INPUTS: Final = frozenset({"callback_url", "callback_events", "callback_prediction"})
INPUT_NAMES: Final = tuple(name for name in PARAMETERS if name not in _NO_INPUTS)
_KNOWN: Final = dict(zip(INPUT_NAMES, INPUT_NAMES, strict=True))


class WebhookEvent(StrEnum):
    """A webhook is sent at these events."""

    START = "start"
    OUTPUT = "output"
    LOGS = "logs"
    COMPLETED = "completed"


class PredictionRequest(BaseModel):
    """A request for a prediction has these fields."""

    model_config = ConfigDict(extra="forbid")

    input: dict[str, Any] = Field(
        description="The prompt, and other parameters of a job in diffusers' names, or in those of "
        "Replicate's models: num_outputs, mask, prompt_strength, output_format."
    )
    version: Annotated[str, Field(min_length=1, max_length=400)] | None = Field(
        default=None,
        description="A digest of a model, its name, or owner/name:digest; by default the fleet's "
        "default model.",
    )
    webhook: str | None = Field(
        default=None,
        description="An http(s) address that receives the prediction, signed, at each of "
        "`webhook_events_filter`.",
    )
    webhook_events_filter: list[WebhookEvent] | None = Field(
        default=None, description="By default all of them."
    )
    webhook_completed: str | None = Field(
        default=None, description="An address that receives the prediction when it has ended."
    )
    stream: bool | None = Field(
        default=None, description="Ignored: each prediction can be followed at `urls.stream`."
    )

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Check the fields of a request. Raises Problem."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            limit = first["msg"].replace("Input should", "must").replace("Field ", "is ")
            if first["type"] == "extra_forbidden":
                limit = f"is unknown; known are {', '.join(cls.model_fields)}"
            raise wrong_field(name, fields.get(name), limit[0].lower() + limit[1:]) from None

    def job_parameters(self, models: FleetModels, name: str | None) -> dict[str, Any]:
        """Return the parameters of the job.

        Args:
            name: the model that the path of the request names; None: the path names none.

        Raises Problem.
        """
        parameters = self._inputs()
        if isinstance(given := parameters.get("model"), str):
            parameters["model"] = models.named(given)
        if self.version is not None:
            model = models.of_version(self.version)
        elif name is not None:
            model = models.named(name)
        else:
            return parameters
        if parameters.setdefault("model", model) != model:
            raise wrong_field(
                "model", parameters["model"], f"differs from the {model} of the request"
            )
        return parameters

    def fields(self) -> dict[str, Any]:
        """Return what errors may quote: the inputs, and the other fields that name something."""
        return {**self.input, **self.model_dump(include={"version", *_WEBHOOKS})}

    def names(self) -> dict[str, str]:
        """Return the names that the request has for parameters of the job, by ours."""
        given = (name for name, value in self.input.items() if value is not None)
        names = {THEIR_NAMES[name]: name for name in given if name in THEIR_NAMES}
        if self.version is not None:
            names["model"] = "version"
        names["callback_url"] = _WEBHOOKS[0] if self.webhook is not None else _WEBHOOKS[1]
        return names

    def webhook_parameters(self) -> dict[str, Any]:
        """Return the parameters of the job that say where and when it is reported.

        Raises Problem.
        """
        if self.webhook_completed is not None and self.webhook is not None:
            limit = "cannot be given beside webhook"
            raise wrong_field("webhook_completed", self.webhook_completed, limit)
        url = self.webhook or self.webhook_completed
        if url is None:
            return {}
        kinds = self.webhook_events_filter or list(WebhookEvent)
        if self.webhook_completed is not None:
            kinds = [WebhookEvent.COMPLETED]
        events = {event.value: None for kind in kinds for event in WEBHOOK_EVENTS[kind]}
        return {"callback_url": url, "callback_events": list(events)}

    def _inputs(self) -> dict[str, Any]:
        """Return the inputs by their names here. Raises Problem for an unknown one, and for one
        that has two names with different values."""
        parameters: dict[str, Any] = {}
        for name, value in self.input.items():
            if value is None:
                continue
            own = THEIR_NAMES.get(name, name)
            if own not in _KNOWN:
                raise wrong_field(name, value, _why_unknown(name))
            own_value = _converted(name, value)
            if parameters.setdefault(own, own_value) != own_value:
                limit = f"is {own} here, which is given as {parameters[own]!r}, too"
                raise wrong_field(name, value, limit)
        return parameters


def _converted(name: str, value: Any) -> Any:
    """Return a value as a job has it."""
    if not isinstance(value, str):
        return value
    if name == "scheduler":  # K_EULER, DPMSolverMultistep
        return scheduler_called(value) or value
    return "jpeg" if name == "output_format" and value == "jpg" else value


def _why_unknown(name: str) -> str:
    if name in _NO_INPUTS:
        return "is no input; give `webhook` beside `input`"
    return hint(name, _KNOWN) or f"is no input; known are {', '.join([*_KNOWN, *THEIR_NAMES])}"

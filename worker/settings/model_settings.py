"""The settings of a worker that say which models it serves."""

import shlex
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from imagefleet.shared.errors import ConfigurationError
from imagefleet.worker.settings.callback_settings import CallbackSettings


class ModelSettings(CallbackSettings):
    """The settings of models. `commands.next_model` decides when a worker switches."""

    model: str = Field(
        default="shapes",
        description="Model: `shapes` (bundled), a folder in diffusers format, a Hugging Face Hub "
        "id, a `.safetensors` file in the original format, or `fake[:seconds=…]` for tests. "
        "An empty value counts as not set.",
    )
    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Several models in place of `model`, separated by spaces and quoted as in a "
        "shell. One at a time is on the devices; the first is for jobs that name none. "
        "docs/operations.md says when the worker switches.",
    )
    model_min_stay_s: float = Field(
        default=60.0,
        ge=0,
        le=86400,
        description="With `models`: seconds for which a model stays on the devices at least.",
    )
    model_max_wait_s: float = Field(
        default=120.0,
        ge=0,
        le=86400,
        description="With `models`: seconds by which the oldest job of another model may be older "
        "than the oldest of the model on the devices.",
    )
    serves_default: bool = Field(
        default=True,
        description="Whether this worker makes the jobs that name no model. All workers that do "
        "should have the same model.",
    )

    forget_models_s: float = Field(
        default=30 * 86400.0,
        ge=86400,
        le=3650 * 86400,
        description="Seconds for which producers can submit jobs for a model after the last worker "
        "that offered it has left. Then the model is forgotten.",
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_model(cls, given: object) -> object:
        """Let an environment unset the model that one below it sets, as Kustomize's overlays do."""
        if isinstance(given, Mapping) and given.get("model") == "":
            return {name: value for name, value in given.items() if name != "model"}
        return given

    @field_validator("models", mode="before")
    @classmethod
    def _split_models(cls, value: object) -> object:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    def every_model(self) -> tuple[str, ...]:
        """Return `models`, or the one model."""
        return self.models or (self.model,)

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Load as `Settings.load` does, then check `models`.

        Raises:
            ConfigurationError: it names the variable or the override that is wrong.
        """
        settings = super().load(**overrides)
        if settings.models:
            if "model" in settings.model_fields_set:
                raise ConfigurationError(
                    "IMAGEFLEET_MODELS is set and IMAGEFLEET_MODEL too; use one"
                )
            if len(set(settings.models)) < max(2, len(settings.models)):
                raise ConfigurationError(
                    f"IMAGEFLEET_MODELS={shlex.join(settings.models)!r}: name two models or more, "
                    "each once; for one model use IMAGEFLEET_MODEL"
                )
        return settings

    def refuse_with_models(self, *names: str) -> None:
        """Check settings that fit one model. Raises ConfigurationError if there are several."""
        for name in names:
            if self.models and getattr(self, name):
                raise ConfigurationError(
                    f"IMAGEFLEET_{name.upper()} fits one model; it cannot be used with "
                    "IMAGEFLEET_MODELS"
                )

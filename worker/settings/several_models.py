"""Check the setting `models`, with which a host serves several models in turn."""

import shlex
from collections.abc import Mapping, Sequence

from imagefleet.shared.errors import ConfigurationError

_OF_ONE_MODEL = ("lora", "job_lora", "controlnet", "textual_inversion", "model_license")


def check_models(models: Sequence[str], given: Mapping[str, object]) -> None:
    """Check that there are several models, and that no setting is given which fits a single one.

    Args:
        given: the settings that were given, with their values.

    Raises:
        ConfigurationError: it names the setting that is wrong.
    """
    if "model" in given:
        raise ConfigurationError("IMAGEFLEET_MODELS is set and IMAGEFLEET_MODEL too; use one")
    if len(set(models)) < max(2, len(models)):
        raise ConfigurationError(
            f"IMAGEFLEET_MODELS={shlex.join(models)!r}: name two models or more, "
            "each once; for one model use IMAGEFLEET_MODEL"
        )
    for name in _OF_ONE_MODEL:
        if given.get(name):
            raise ConfigurationError(
                f"IMAGEFLEET_{name.upper()} fits one model; it cannot be used with "
                "IMAGEFLEET_MODELS"
            )

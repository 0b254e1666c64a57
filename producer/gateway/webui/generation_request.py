"""Turn a request of AUTOMATIC1111's API into the parameters of a job.

The names and values are those of `shared.jobs.foreign_names`; a request may also have parameters of
a job in diffusers' names. What is neither, and would change the image, is refused: a client that
sends it expects another image.

Source: https://github.com/AUTOMATIC1111/stable-diffusion-webui, modules/api.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from imagefleet.producer.bulk.foreign_rows import SCHEDULE, translated
from imagefleet.producer.bulk.notes import Notes
from imagefleet.producer.gateway.problems import wrong_field
from imagefleet.shared.jobs.foreign_names import FOREIGN_NAMES
from imagefleet.shared.jobs.parameter_types import INPUT_FIELDS, MAX_PROMPT_CHARACTERS

_CHANGES_NOTHING: Final = frozenset(
    {"do_not_save_samples", "do_not_save_grid", "save_images", "include_init_images"}
    | {"override_settings_restore_afterwards", "force_task_id"}
    | {"url", "auth"}  # SillyTavern forwards its own request
)
_SAMPLERS: Final = ("sampler_name", "sampler_index")
_MODELS: Final = ("sd_model_checkpoint", "model")
_LAST_LAYER: Final = "clip_stop_at_last_layers"
_COUNT: Final = "num_images_per_prompt"
_OF_IMAGES: Final = {"image": "init_images", "mask_image": "mask"}
_OF_MODELS_AND_LAYERS: Final = {**dict.fromkeys(_MODELS, "model"), "clip_skip": "clip_skip"}
_SPELLED: Final = {"Schedule type": "scheduler"}


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A request asks for this job."""

    parameters: Mapping[str, Any]
    """They are those of the job, in diffusers' names."""
    names: Mapping[str, str]
    """It holds the names that the request has for them, by ours."""
    echo: Mapping[str, Any]
    """The answer shows these fields of the request, and no images."""
    sends_images: bool

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, has_image: bool) -> Self:
        """Translate the fields of a request, without those of its images. Raises Problem."""
        given = {name: value for name, value in fields.items() if name not in _CHANGES_NOTHING}
        echo = {name: value for name, value in given.items() if name not in INPUT_FIELDS}
        sends_images = given.pop("send_images", True) is not False
        if not has_image:  # there, it belongs to the second pass
            given.pop("denoising_strength", None)
        settings = given.pop("override_settings", None) or {}
        if not isinstance(settings, Mapping):
            raise wrong_field("override_settings", settings, "must be an object")
        flat = _flat(given, settings)
        if isinstance(prompt := flat.get("prompt"), str) and len(prompt) > MAX_PROMPT_CHARACTERS:
            limit = f"must be at most {MAX_PROMPT_CHARACTERS:,} characters"
            raise wrong_field("prompt", prompt, limit)
        models = [flat.pop(name, None) for name in _MODELS]
        parameters = translated(flat, _Refusals())
        if model := next(filter(None, models), None):
            parameters["model"] = model
        names = _names({**given, **settings})
        return cls(parameters=parameters, names=names, echo=echo, sends_images=sends_images)


class _Refusals(Notes):
    """These notes refuse what another tool would leave out."""

    def leave_out(self, name: str, value: object = "") -> None:
        if name.startswith("<"):
            name, value = "prompt", name
        limit = "has no equal here, and would change the image; leave it out"
        if name in _SAMPLERS:
            limit = "is no sampler here; GET /sdapi/v1/samplers lists those of the model"
        raise wrong_field(_SPELLED.get(name, name), value, limit)


def _flat(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields and settings in the names of the table, without those that say nothing."""
    both = {**given, **{name.lower(): value for name, value in settings.items()}}
    if "clip_skip" in both:  # of SD.Next and stable-diffusion.cpp; it counts as the web UI does
        both.setdefault(_LAST_LAYER, both["clip_skip"])
        del both["clip_skip"]
    if (schedule := both.pop("scheduler", None)) is not None:
        both[SCHEDULE] = schedule
    return {name: each for name, each in both.items() if each != "" or name not in _SAMPLERS}


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the fields and settings, as they were sent, by the parameters they give.
    A product has the names of its factors."""
    names = dict(_OF_IMAGES)
    for name, value in given.items():
        ours = _ours(name.lower())
        if not ours or value is None:
            continue
        is_factor = ours == _COUNT and ours in names
        names[ours] = f"{names[ours]} × {name}" if is_factor else name
    return names


def _ours(name: str) -> str:
    if name in _OF_MODELS_AND_LAYERS:
        return _OF_MODELS_AND_LAYERS[name]
    foreign = FOREIGN_NAMES.get(name)
    return "" if foreign is None else foreign.ours

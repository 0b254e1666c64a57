"""An offer says which model the workers serve, with its shapes, schedulers and defaults.

Workers announce offers, and producers check requests against them. Offers stay when the workers
leave: a preempted fleet comes back, and its producers can submit meanwhile. A model that no worker
has offered for weeks is forgotten.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Final, cast

from pydantic import ConfigDict, Field, ValidationError

from imagefleet.shared.jobs.default_strengths import STABLE_DIFFUSION, DefaultStrengths
from imagefleet.shared.jobs.model import Measured, Model
from imagefleet.shared.jobs.parameter import is_false, is_none, is_whole
from imagefleet.shared.jobs.queues import DEFAULT_MODEL
from imagefleet.shared.jobs.redis_keys import offered_at_key, offers_key
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.redis_client.scripts import load_script
from imagefleet.shared.redis_client.wrong_type_keys import read_key
from imagefleet.shared.text.printable import printable

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger(__name__)

_CACHE_TTL_S: Final = 10.0
_RENEW_EVERY_S: Final = 3600.0

_Positive = Annotated[int, Field(gt=0, lt=2**31)]
_NotNegative = Annotated[int, Field(ge=0, lt=2**31)]


class Offer(Model):
    """An offer describes one model as it is served.

    Shapes are (height, width) in pixels. The default shape is the first.
    """

    model_config = ConfigDict(extra="ignore")  # newer workers may announce more fields
    model: str
    digest: str
    model_license: str | None = Field(default=None, exclude_if=is_none)
    """The licence of the model, such as `apache-2.0`, as its card or its workers' settings say it.
    None: neither does, or its worker is of an older release."""
    shapes: Annotated[tuple[tuple[_Positive, _Positive], ...], Field(min_length=1)]
    schedulers: tuple[str, ...]
    max_num_inference_steps: _Positive
    num_inference_steps: _Positive
    guidance_scale: Annotated[float, Field(allow_inf_nan=False)]
    unguided_scale: Measured = Field(default=1.0, exclude_if=is_whole)
    """A job whose `guidance_scale` is at most this one has no guidance."""
    scheduler: str
    max_clip_skip: _NotNegative = 0
    """The most layers of the text encoders that a job may skip. 0: the model does not skip any, or
    its worker is of release 0.1.0."""
    rescales_guidance: bool = False
    """Whether jobs may have `guidance_rescale`. False: diffusers' pipeline has none, or its worker
    is of an older release."""
    limits_guidance: bool = Field(default=False, exclude_if=is_false)
    """Whether jobs may have `cfg_normalization` and `cfg_truncation`. False: diffusers' pipeline
    has neither, or its worker is of an older release."""
    true_guidance: bool = Field(default=False, exclude_if=is_false)
    """Whether jobs may have `true_cfg_scale`. False: diffusers' pipeline has none, or its worker is
    of an older release."""
    prompt_chunks: _NotNegative = 0
    """The most chunks, each as long as the text encoders take, of a prompt with `prompt_weighting`.
    0: the workers take no such jobs."""
    loras: dict[str, str] = Field(default_factory=dict)
    """Digest (`sha256:…`) of each LoRA file that jobs may use, by name."""
    controlnets: dict[str, str] = Field(default_factory=dict, exclude_if=is_false)
    """Digest (`sha256:…`) of each ControlNet that jobs may use, by name."""
    takes_image: bool = Field(default=True, exclude_if=bool)
    """Whether jobs may have an `image`."""
    required_images: tuple[str, ...] = ()
    """Those of `image` and `mask_image` that every job needs."""
    strength: Measured | None = STABLE_DIFFUSION.image
    """None: the model takes neither `strength` nor `mask_image`."""
    mask_strength: Measured | None = None
    """`strength` of jobs with a `mask_image`. None: that of jobs without one, as with workers of
    older releases."""
    rounds_steps_up: bool = Field(default=False, exclude_if=is_false)
    """Whether a step of which `strength` leaves a part is run."""
    image_guidance_scale: Measured | None = None
    """None: the model takes none."""
    splits_denoising: bool = False
    """Whether jobs may have `denoising_end`, or `latents` with `denoising_start`. False: diffusers'
    pipeline has neither, or its worker is of an older release."""
    storage_url: str | None = None
    """The store of the fleet, as its workers open it. None: a worker of release 0.1.0, or a store
    that no other process can open."""

    @property
    def default_strengths(self) -> DefaultStrengths:
        """Return the `strength` of jobs that name none."""
        mask = self.strength if self.mask_strength is None else self.mask_strength
        return DefaultStrengths(self.strength, mask, self.rounds_steps_up)


def strengths_of(offers: Mapping[str, Offer], request: JobRequest) -> DefaultStrengths:
    """Return the default strengths of a request's model; Stable Diffusion's if nobody offers it."""
    offer = offers.get(request.model or DEFAULT_MODEL)
    return STABLE_DIFFUSION if offer is None else offer.default_strengths


def unguided_scale_of(offers: Mapping[str, Offer], model: str | None) -> float:
    """Return the guidance scale at which a model has no guidance; 1 if nobody offers it."""
    offer = offers.get(model or DEFAULT_MODEL)
    return 1.0 if offer is None else offer.unguided_scale


class OfferRegistry:
    """The registry holds the offers of one namespace, and caches them for 10 seconds once there are
    any."""

    def __init__(self, client: "Redis", namespace: str, *, keeps_known: bool = False) -> None:
        """With `keeps_known` what was offered last counts while Redis does not answer: the lanes
        of the jobs may."""
        self._redis = client
        self._keeps_known = keeps_known
        self._key = offers_key(namespace)
        self._offered_at_key = offered_at_key(namespace)
        self._announce = load_script(client, __package__, "announce_offers")
        self._renew = load_script(client, __package__, "renew_offers")
        self._offers: dict[str, Offer] = {}
        self._read_at = float("-inf")

    def announce(self, offer: Offer, *, default: bool = True) -> None:
        """Store an offer under its model's name, and as that of jobs that name no model."""
        text = offer.model_dump_json()
        names = [offer.model, DEFAULT_MODEL] if default else [offer.model]
        self._announce(keys=[self._key], args=[text, *names])

    def renew(self, models: Collection[str], keep_s: float) -> list[str]:
        """Note that `models` are offered now. Forget and return those that nobody has offered for
        `keep_s`."""
        keys = [self._key, self._offered_at_key]
        return cast(list[str], self._renew(keys=keys, args=[keep_s, *models]))

    def offers(self) -> dict[str, Offer]:
        """Return the offers by model name. `default` serves jobs that name no model.

        Empty until the first worker of the fleet is ready.
        """
        if not self._offers or time.monotonic() - self._read_at > _CACHE_TTL_S:
            self._read()
        return self._offers

    def _read(self) -> None:
        import redis

        try:
            texts = read_key(self._redis, lambda pipe: pipe.hgetall(self._key)) or {}
        except redis.RedisError as error:
            if not self._keeps_known or not self._offers:
                raise
            log.warning("what workers offer is not known now, and counts as before: %s", error)
            self._read_at = time.monotonic()
            return
        self._offers = dict(_readable(texts))
        others = texts.keys() - {DEFAULT_MODEL}
        if DEFAULT_MODEL in texts and len(others) == len(self._offers) == 1:  # all serve it
            self._offers.setdefault(DEFAULT_MODEL, *self._offers.values())
        self._read_at = time.monotonic()


def _readable(texts: Mapping[str, str]) -> Iterator[tuple[str, Offer]]:
    """Yield the offers that can be read; anybody may have written others."""
    for name, text in texts.items():
        try:
            yield name, Offer.model_validate_json(text)
        except ValidationError:
            log.warning("the offer of model %s in Redis cannot be read", printable(name, 80))


class OfferRenewal:
    """Renews the offers of one worker once an hour, so that they are not forgotten."""

    def __init__(self, registry: OfferRegistry, keep_s: float) -> None:
        self._registry = registry
        self._keep_s = keep_s
        self._renewed_at = float("-inf")

    def renew_if_due(self, models: Collection[str]) -> None:
        """Renew the offers of `models` unless that was done within the last hour."""
        if time.monotonic() - self._renewed_at < _RENEW_EVERY_S:
            return
        forgotten = self._registry.renew(models, self._keep_s)
        self._renewed_at = time.monotonic()
        if forgotten:
            log.warning("models that nobody offers any more are forgotten: %s", forgotten)

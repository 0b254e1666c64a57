"""What the fleet can do: each model with its shapes, schedulers and defaults, told by its workers.

It stays when the workers leave: a preempted fleet comes back, and its producers go on meanwhile.
Which of them are alive is known here too.
"""

import time
from typing import TYPE_CHECKING, Final, cast

from pydantic import ConfigDict

from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.queues import DEFAULT_MODEL, leases_key

if TYPE_CHECKING:
    from redis import Redis

_FRESH_S: Final = 10.0


class Offer(Model):
    """One model as served here. Shapes are (height, width) in pixels, the default one first."""

    model_config = ConfigDict(extra="ignore")  # of newer workers
    model: str
    digest: str
    shapes: tuple[tuple[int, int], ...]
    schedulers: tuple[str, ...]
    max_num_inference_steps: int
    num_inference_steps: int
    guidance_scale: float
    scheduler: str


class OfferRegistry:
    """The offers of one namespace, read through a cache of some seconds."""

    def __init__(self, client: "Redis", namespace: str) -> None:
        self._redis = client
        self._key = f"{namespace}:catalogue"
        self._leases = leases_key(namespace)
        self._offers: dict[str, Offer] = {}
        self._read_at = float("-inf")

    def announce(self, offer: Offer) -> None:
        """Offer a model, also to those who name none."""
        text = offer.model_dump_json()
        self._redis.hset(self._key, mapping={offer.model: text, DEFAULT_MODEL: text})

    def offers(self) -> dict[str, Offer]:
        """By model name; `default` is what a job without a model gets. Empty before any worker."""
        if time.monotonic() - self._read_at > _FRESH_S:
            found = cast(dict[str, str], self._redis.hgetall(self._key))
            self._offers = {name: Offer.model_validate_json(text) for name, text in found.items()}
            self._read_at = time.monotonic()
        return self._offers

    def workers(self) -> list[str]:
        """The workers that are alive, by name: those whose lease has not run out."""
        now, _ = self._redis.time()  # leases end by the server's clock
        return cast(list[str], self._redis.zrangebyscore(self._leases, now, "+inf"))

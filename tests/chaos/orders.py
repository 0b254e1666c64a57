"""What is asked of the fleet, drawn from a seed: so the ledger knows what each job must become.

Knows the vocabulary of jobs, no Redis, no worker, and no time but "so long after the beginning".
"""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from imagefleet.shared.jobs.model import JobRequest, State
from imagefleet.worker.engine.fake import DIE, FAIL

SIZES: Final = ((64, 64), (32, 32))
"""Two compile keys, the first one the default."""
TENANTS: Final = ("flood", "gold", "silver", None)
_TENANT_SHARES: Final = (6, 2, 2, 2)
_PRIORITIES: Final = (0, 3, 3, 3, 3, 3, 6, 9)
_SHARE_WITHDRAWN: Final = 0.06
_SHARE_BREAKERS: Final = 0.005
_SHARE_WITH_CALLBACK: Final = 0.35


class Producer(StrEnum):
    """Who submits it, and how."""

    ONE_BY_ONE = "one by one"  # `submit`; a share is sent a second time with the same id
    BUNDLES = "bundles"  # `submit_many`
    CELERY = "celery"  # Celery's own `send_task`


class Fate(StrEnum):
    """What the suite means to happen to it."""

    PAINTED = "painted"
    WITHDRAWN_WAITING = "withdrawn waiting"
    WITHDRAWN_RUNNING = "withdrawn running"
    BREAKER = "breaker"  # fails every batch it is in
    KILLER = "killer"  # takes every worker down that runs it


ENDS: Final = {
    Fate.PAINTED: frozenset({State.SUCCEEDED}),
    Fate.WITHDRAWN_WAITING: frozenset({State.CANCELLED, State.SUCCEEDED}),
    Fate.WITHDRAWN_RUNNING: frozenset({State.CANCELLED, State.SUCCEEDED}),
    Fate.BREAKER: frozenset({State.FAILED}),
    Fate.KILLER: frozenset({State.FAILED}),
}
"""A withdrawal may come too late; anything else has one right end."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One job as the producer will ask for it."""

    id: str
    producer: Producer
    fate: Fate
    due_s: float
    resent: bool
    parameters: dict[str, Any]

    @property
    def poison(self) -> bool:
        return self.fate in (Fate.BREAKER, Fate.KILLER)

    @property
    def request(self) -> JobRequest:
        return JobRequest.parse(self.parameters)


def draw(
    seed: int, *, jobs: int, seconds: float, killers: int, callback_url: str, prefix: str = "job"
) -> list[Order]:
    """`jobs` orders spread over `seconds`, in the order they are due. `killers` of them are deadly,
    and come early: it takes a lease for each of their deaths until they are given up."""
    rng = random.Random(seed)
    deadly = set(rng.sample(range(jobs), killers))
    orders = [
        _order(rng, f"{prefix}-{number}", number in deadly, seconds, callback_url)
        for number in range(jobs)
    ]
    return sorted(orders, key=lambda order: order.due_s)


def _order(
    rng: random.Random, job_id: str, deadly: bool, seconds: float, callback_url: str
) -> Order:
    producer = rng.choice(list(Producer))
    fate = Fate.KILLER if deadly else _fate(rng, producer)
    mark = {Fate.KILLER: f" {DIE}", Fate.BREAKER: f" {FAIL}"}.get(fate, "")
    height, width = rng.choice(SIZES)
    parameters: dict[str, Any] = {
        "prompt": f"picture of {job_id}{mark}",
        "seed": rng.getrandbits(32),
        "height": height,
        "width": width,
        "num_inference_steps": rng.choice((2, 4, 8)),
        "guidance_scale": rng.choice((1.0, 7.5)),
        "num_images_per_prompt": rng.choices((1, 2, 4), (16, 3, 1))[0],
        "priority": rng.choice(_PRIORITIES),
        "format": rng.choice(("png", "png", "webp")),
        "tenant": rng.choices(TENANTS, _TENANT_SHARES)[0],
    }
    if producer is Producer.CELERY:  # Celery's tools know no tenants
        parameters["tenant"] = None
    if rng.random() < _SHARE_WITH_CALLBACK:
        parameters["callback_url"] = callback_url
    return Order(
        id=job_id,
        producer=producer,
        fate=fate,
        due_s=_due(rng, parameters["tenant"], seconds / 5 if deadly else seconds),
        resent=rng.random() < 0.1,
        parameters=parameters,
    )


def _fate(rng: random.Random, producer: Producer) -> Fate:
    drawn = rng.random()
    if drawn < _SHARE_BREAKERS:
        return Fate.BREAKER
    if drawn < _SHARE_BREAKERS + _SHARE_WITHDRAWN and producer is not Producer.CELERY:
        return rng.choice((Fate.WITHDRAWN_WAITING, Fate.WITHDRAWN_RUNNING))
    return Fate.PAINTED


def _due(rng: random.Random, tenant: str | None, seconds: float) -> float:
    """Half of what the flooding tenant wants comes in the first tenth, so that others must pass."""
    early = tenant == "flood" and rng.random() < 0.5
    return rng.uniform(0, seconds / 10 if early else seconds)


def write(orders: Iterable[Order], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(order)) + "\n" for order in orders))


def read(path: Path) -> Iterator[Order]:
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        fields["producer"], fields["fate"] = Producer(fields["producer"]), Fate(fields["fate"])
        yield Order(**fields)

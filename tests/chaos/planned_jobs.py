"""The jobs of a chaos run, drawn from a seed, so that the audit can compute how each one must end.

A planned job has a request, a scenario and the time of its submission, in seconds after the start.
This module uses neither Redis nor workers.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from imagefleet.shared.jobs.model import State
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.worker.engine.fake.fake_engine import DIE, FAIL

SIZES: Final = ((64, 64), (32, 32))
"""Two compile keys. The first one is the default."""
TENANTS: Final = ("flood", "gold", "silver", None)
_TENANT_SHARES: Final = (6, 2, 2, 2)
_PRIORITIES: Final = (0, 3, 3, 3, 3, 3, 6, 9)
_SHARE_CANCELLED: Final = 0.06
_SHARE_FAILING: Final = 0.005
_SHARE_WITH_CALLBACK: Final = 0.35


class ProducerKind(StrEnum):
    """How a job is submitted. There is one producer process for each kind."""

    SUBMIT = "submit"  # a tenth is submitted a second time with the same id
    SUBMIT_MANY = "submit_many"
    CELERY = "celery"  # Celery's own `send_task`
    HTTP = "http"  # predictions, through one of two gateways


WITHOUT_GATEWAYS: Final = {
    ProducerKind.SUBMIT: 1,
    ProducerKind.SUBMIT_MANY: 1,
    ProducerKind.CELERY: 1,
}
"""How often each kind of producer is drawn where no gateway runs."""
WITH_GATEWAYS: Final = {**WITHOUT_GATEWAYS, ProducerKind.HTTP: 3}
"""Every second job comes over HTTP."""

WITH_LANES: Final[Mapping[ProducerKind, int]] = {
    kind: n for kind, n in WITH_GATEWAYS.items() if kind is not ProducerKind.CELERY
}
"""The kinds in a cluster."""


class Scenario(StrEnum):
    """What must happen to a job."""

    SUCCEEDS = "succeed"
    CANCELLED_WAITING = "be cancelled while queued"
    CANCELLED_RUNNING = "be cancelled while running"
    FAILS_BATCH = "fail"  # it fails every batch that it is in
    KILLS_WORKER = "kill its workers"  # it kills every worker that runs it


ALLOWED_STATES: Final = {
    Scenario.SUCCEEDS: frozenset({State.SUCCEEDED}),
    Scenario.CANCELLED_WAITING: frozenset({State.CANCELLED, State.SUCCEEDED}),
    Scenario.CANCELLED_RUNNING: frozenset({State.CANCELLED, State.SUCCEEDED}),
    Scenario.FAILS_BATCH: frozenset({State.FAILED}),
    Scenario.KILLS_WORKER: frozenset({State.FAILED}),
}
"""A cancellation may come too late. Every other scenario has one right terminal state."""


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """One job with its parameters, its producer and its scenario."""

    id: str
    producer: ProducerKind
    scenario: Scenario
    due_s: float
    resent: bool
    parameters: dict[str, Any]

    @property
    def poison(self) -> bool:
        return self.scenario in (Scenario.FAILS_BATCH, Scenario.KILLS_WORKER)

    @property
    def request(self) -> JobRequest:
        return JobRequest.parse(self.parameters)


def draw_jobs(
    seed: int,
    *,
    jobs: int,
    seconds: float,
    killers: int,
    callback_url: str,
    prefix: str = "job",
    kinds: Mapping[ProducerKind, int] = WITHOUT_GATEWAYS,
) -> list[PlannedJob]:
    """Return `jobs` planned jobs spread over `seconds`, in the order in which they are due.

    `killers` of them kill their worker. These come early, since a lease must expire after each
    delivery until they are dead letters.
    """
    rng = random.Random(seed)
    kills = set(rng.sample(range(jobs), killers))
    planned = [
        _draw_job(rng, f"{prefix}-{number}", number in kills, seconds, callback_url, kinds)
        for number in range(jobs)
    ]
    return sorted(planned, key=lambda job: job.due_s)


def without_callback(job: PlannedJob) -> PlannedJob:
    """Return `job` as one that reports nothing, for runs without a receiver."""
    parameters = {key: value for key, value in job.parameters.items() if key != "callback_url"}
    return replace(job, parameters=parameters)


def for_real_model(job: PlannedJob) -> PlannedJob:
    """Return `job` as one for a real model: no prompt fails its batch, and files lose nothing."""
    fails = job.scenario is Scenario.FAILS_BATCH
    return replace(
        job,
        scenario=Scenario.SUCCEEDS if fails else job.scenario,
        parameters={**job.parameters, "format": "png"},
    )


def _draw_job(
    rng: random.Random,
    job_id: str,
    kills: bool,
    seconds: float,
    callback_url: str,
    kinds: Mapping[ProducerKind, int],
) -> PlannedJob:
    [producer] = rng.choices(list(kinds), list(kinds.values()))
    scenario = Scenario.KILLS_WORKER if kills else _draw_scenario(rng, producer)
    marker = {Scenario.KILLS_WORKER: f" {DIE}", Scenario.FAILS_BATCH: f" {FAIL}"}.get(scenario, "")
    height, width = rng.choice(SIZES)
    parameters: dict[str, Any] = {
        "prompt": f"image of {job_id}{marker}",
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
    if producer is ProducerKind.CELERY:  # plain Celery has no tenants
        parameters["tenant"] = None
    # Callbacks of predictions have another form, which the receiver does not read.
    if rng.random() < _SHARE_WITH_CALLBACK and producer is not ProducerKind.HTTP:
        parameters["callback_url"] = callback_url
    return PlannedJob(
        id=job_id,
        producer=producer,
        scenario=scenario,
        due_s=_draw_due_s(rng, parameters["tenant"], seconds / 5 if kills else seconds),
        resent=rng.random() < 0.1,
        parameters=parameters,
    )


def _draw_scenario(rng: random.Random, producer: ProducerKind) -> Scenario:
    number = rng.random()
    if number < _SHARE_FAILING:
        return Scenario.FAILS_BATCH
    if number < _SHARE_FAILING + _SHARE_CANCELLED and producer is not ProducerKind.CELERY:
        return rng.choice((Scenario.CANCELLED_WAITING, Scenario.CANCELLED_RUNNING))
    return Scenario.SUCCEEDS


def _draw_due_s(rng: random.Random, tenant: str | None, seconds: float) -> float:
    """Draw when a job is due, in seconds. Half of the flooding tenant's jobs come in the first
    tenth, so that other tenants' jobs must overtake them."""
    early = tenant == "flood" and rng.random() < 0.5
    return rng.uniform(0, seconds / 10 if early else seconds)


def write(planned: Iterable[PlannedJob], path: Path) -> None:
    path.write_text("".join(json.dumps(asdict(job)) + "\n" for job in planned))


def read(path: Path) -> Iterator[PlannedJob]:
    for line in path.read_text().splitlines():
        fields = json.loads(line)
        fields["producer"] = ProducerKind(fields["producer"])
        fields["scenario"] = Scenario(fields["scenario"])
        yield PlannedJob(**fields)

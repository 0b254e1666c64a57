"""Draw the cases of one round from a seed, with Hypothesis."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.errors import HypothesisDeprecationWarning

from tests.fuzz.answers import answers, latents_answers
from tests.fuzz.cases import ID, Case, ControlCase, MessageCase, RequestCase
from tests.fuzz.job_requests import parameters
from tests.fuzz.messages import raw_messages, records
from tests.fuzz.record_fields import damaged_keys
from tests.fuzz.weight_files import weight_files
from tests.support.control_messages import drawn_messages

T = TypeVar("T")

_SETTINGS: Final = hypothesis.settings(
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


_SPARE: Final = 1.5
"""Hypothesis draws some messages twice."""


@dataclass(frozen=True, kw_only=True)
class RoundSize:
    """How many cases of each kind one round has."""

    requests: int
    messages: int
    answers: int
    latents: int = 0
    controls: int = 0
    keys: int = 0
    weights: int = 0

    @property
    def total(self) -> int:
        """The number of all cases."""
        return sum(getattr(self, each.name) for each in fields(self))

    def divided(self, rounds: int) -> "RoundSize":
        """Return the size of each of so many rounds."""
        sizes = {each.name: -(-getattr(self, each.name) // rounds) for each in fields(self)}
        return RoundSize(**sizes)


def draw_round(seed: int, size: RoundSize) -> list[Case]:
    """Return the cases of a round. The same seed draws the same cases."""
    cases: list[Case] = []
    for number, drawn in enumerate(_draw(parameters(), size.requests, seed)):
        cases.append(RequestCase(id=f"r{seed:08x}-{number}", parameters=drawn))
    cases += _draw_messages(size.messages, seed)
    for number, answer in enumerate(_draw(answers(), size.answers, seed + 2)):
        cases.append(replace(answer, id=f"a{seed:08x}-{number}"))
    for number, answer in enumerate(_draw(latents_answers(), size.latents, seed + 3)):
        cases.append(replace(answer, id=f"l{seed:08x}-{number}"))
    for number, control in enumerate(drawn_messages(seed + 4, size.controls)):
        cases.append(ControlCase(id=f"c{seed:08x}-{number}", control=control))
    for number, key in enumerate(_draw(damaged_keys(), size.keys, seed + 5)):
        cases.append(replace(key, id=f"k{seed:08x}-{number}"))
    for number, file in enumerate(_draw(weight_files(), size.weights, seed + 6)):
        cases.append(replace(file, id=f"w{seed:08x}-{number}"))
    return cases


def _draw_messages(count: int, seed: int) -> list[MessageCase]:
    """Draw messages that all differ: two equal ones would be one dead letter."""
    drawn = _draw(st.tuples(raw_messages(), records()), round(_SPARE * count), seed + 1)
    cases: dict[bytes, MessageCase] = {}
    for number, ((message, queue), record) in enumerate(drawn):
        case_id = f"m{seed:08x}-{number}"
        own = message.replace(ID.encode(), case_id.encode())
        case = MessageCase(id=case_id, message=own, queue=queue, record=record)
        cases.setdefault(own, case)
    return list(cases.values())[:count]


def _draw(strategy: st.SearchStrategy[T], count: int, seed: int) -> list[T]:
    """Return about `count` examples: Hypothesis ends early if it knows no more.

    Hypothesis warns if the state of module `random` changes meanwhile, because a strategy must not
    draw from it. None of ours does, but other threads do: each pause before a retry has jitter.
    """
    drawn: list[T] = []
    if not count:
        return drawn

    def collect(example: T) -> None:
        drawn.append(example)

    decorate: Callable[[Any], Any] = hypothesis.settings(_SETTINGS, max_examples=count)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Do not use the", HypothesisDeprecationWarning)
        hypothesis.seed(seed)(decorate(hypothesis.given(strategy)(collect)))()
    return drawn

"""Lanes: the parts into which a fleet is cut whose keys lie on several servers.

A lane holds a share of the jobs with everything that their scripts touch, so that one slot of a
cluster holds all its keys. The id of a job tells its lane. A fleet on one server has one lane, with
the namespace of the fleet. See docs/decisions/0025-lanes-in-a-cluster.md.
"""

import binascii
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Final, Self, TypeVar

if TYPE_CHECKING:
    from redis import Redis

DEFAULT_LANES: Final = 8
"""The number of lanes of a new fleet in a cluster: it may use as many masters."""
_LANE_BITS: Final = 8
MAX_LANES: Final = 1 << _LANE_BITS
SLOTS: Final = 16_384
"""Of a cluster."""

Id = TypeVar("Id")
Answer = TypeVar("Answer")


def lane_namespace(namespace: str, number: int) -> str:
    """Return the namespace of one lane of a fleet in a cluster.

    Servers compute the slot of a key from what stands in its braces, so that every key of this
    namespace is in one slot.
    """
    return f"{namespace}{{{_hash_tag(number)}}}"


@cache
def _hash_tag(number: int) -> str:
    """Return a tag such as `3-117`, with the number of a lane and any other that gives a slot in
    the right part of all slots.

    Lanes take these parts in the order of reversed bits: first the beginning, then the middle, then
    the quarters. So they are spread evenly over masters that have equal ranges of slots, however
    many lanes and masters there are. The numbers alone would lie in four ranges.
    """
    part = int(f"{number:0{_LANE_BITS}b}"[::-1], 2)
    tags = (f"{number}-{other}" for other in count())
    return next(tag for tag in tags if _slot_of(tag) * MAX_LANES // SLOTS == part)


def _slot_of(tag: str) -> int:
    return binascii.crc_hqx(tag.encode(), 0) % SLOTS  # CRC-16/XMODEM, as of the servers


def lane_number(name: str, lanes: int) -> int:
    """Return the lane of a job, of a run, or of whatever else has a name: any text will do."""
    return zlib.crc32(name.encode()) % lanes


def is_in_lane(number: int, lanes: int, name: str) -> bool:
    """Return whether the job or run of this name is in the lane of this number."""
    return lane_number(name, lanes) == number


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A lane: the client of the server that has its keys, and what they begin with."""

    number: int
    namespace: str
    client: "Redis" = field(repr=False)

    @property
    def in_cluster(self) -> bool:
        """Whether its keys and channels are in one slot of a cluster, as the namespace says."""
        return self.namespace.endswith("}")


class Lanes:
    """The lanes of a fleet, in the order of their numbers. Threads may share them."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        assert lanes, "a fleet has at least one lane"
        assert [lane.number for lane in lanes] == list(range(len(lanes)))
        self._lanes = tuple(lanes)

    @classmethod
    def single(cls, client: "Redis", namespace: str) -> Self:
        """Return the lane of a fleet on one server."""
        return cls([Lane(number=0, namespace=namespace, client=client)])

    @property
    def first(self) -> Lane:
        """Lane 0, which also holds what is of the whole fleet."""
        return self._lanes[0]

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def __getitem__(self, number: int) -> Lane:
        return self._lanes[number]

    def of(self, name: str) -> Lane:
        """Return the lane of a job or run."""
        return self._lanes[lane_number(name, len(self._lanes))]

    def answer_each(
        self,
        ids: Sequence[Id],
        name_of: Callable[[Id], str],
        ask: Callable[[Lane, list[Id]], Sequence[Answer]],
    ) -> list[Answer]:
        """Ask each lane once for those of `ids` that it holds. Return one answer for each id, in
        the order of `ids`.

        Args:
            name_of: returns the name of the job or run whose lane it is.
            ask: returns one answer for each id that it is given.
        """
        if len(self._lanes) == 1:
            return list(ask(self._lanes[0], list(ids)))
        places: dict[int, list[int]] = {}
        for place, each in enumerate(ids):
            places.setdefault(lane_number(name_of(each), len(self._lanes)), []).append(place)
        answers: dict[int, Answer] = {}
        for number, own in places.items():
            asked = ask(self._lanes[number], [ids[place] for place in own])
            answers.update(zip(own, asked, strict=True))
        return [answers[place] for place in range(len(ids))]

    def close(self) -> None:
        """Close the connections of all lanes."""
        for lane in self._lanes:
            lane.client.close()

"""What the hosts of a fleet have in common, and which of them differ.

Input: what workers report of themselves. Output: their differences. Workers of older releases do
not say what they have, and are ignored. Nothing here reads Redis.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from imagefleet.shared.jobs.model import Model
from imagefleet.shared.jobs.worker_names import host_of
from imagefleet.shared.jobs.worker_status import Trait, WorkerState, WorkerStatus
from imagefleet.shared.text.printable import counted

_NAMES: Final = {
    Trait.MODEL: "model of jobs that name none",
    Trait.DIGEST: "digest of the model",
    Trait.STORE: "store",
    Trait.SHAPES: "default shape",
}
_SETTINGS: Final = {
    Trait.MODEL: "IMAGEFLEET_MODEL",
    Trait.DIGEST: "the files of IMAGEFLEET_MODEL",
    Trait.STORE: "IMAGEFLEET_STORAGE_URL",
    Trait.SHAPES: "IMAGEFLEET_SHAPES",
}
_TAKES_WORK: Final = (WorkerState.READY, WorkerState.QUARANTINED)
_MAX_DIGEST: Final = 19
"""So many characters of a digest are shown."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One worker has another value than a second one."""

    trait: Trait
    value: str
    other: WorkerStatus
    """It is the second worker."""
    other_value: str
    allowed: bool
    """It is true if the setting `may_differ` of one of the two names the trait."""

    def __str__(self) -> str:
        return (
            f"its {_NAMES[self.trait]} is {_shown(self.value)} and that of worker "
            f"{self.other.worker} is {_shown(self.other_value)}"
        )


class HostDifference(Model):
    """A worker differs from most others of its fleet. `imagefleet fleet` shows it."""

    worker: str
    trait: Trait
    value: str
    usual: str
    """Most workers have this value."""
    usual_workers: int
    """It counts these workers."""
    allowed: bool
    """It is true if `may_differ` of this worker, or of a usual one, names the trait."""

    def __str__(self) -> str:
        others = counted(self.usual_workers, "worker")
        return (
            f"the {_NAMES[self.trait]} of worker {self.worker} is {_shown(self.value)}, and that "
            f"of {others} is {_shown(self.usual)}"
        )


def members(statuses: Iterable[WorkerStatus]) -> list[WorkerStatus]:
    """Return the workers that take work or will again."""
    return [each for each in statuses if each.state in _TAKES_WORK]


def differences_between(ours: WorkerStatus, theirs: WorkerStatus) -> Iterator[Difference]:
    """Yield what differs between two workers that must have it in common."""
    other = _values(theirs)
    may_differ = _may_differ(ours) | _may_differ(theirs)
    for key, value in _values(ours).items():
        trait, _ = key
        if value and other.get(key, "") not in ("", value):
            yield Difference(
                trait=trait,
                value=value,
                other=theirs,
                other_value=other[key],
                allowed=trait in may_differ,
            )


def refusal(ours: WorkerStatus, others: Iterable[WorkerStatus], namespace: str) -> str | None:
    """Return why a worker may not join a fleet with these workers, or None if it may."""
    found: dict[Trait, Difference] = {}
    for theirs in others:
        for each in differences_between(ours, theirs):
            if not each.allowed:
                found.setdefault(each.trait, each)
    if not found:
        return None
    what = "; ".join(map(str, found.values()))
    settings = " and ".join(dict.fromkeys(_SETTINGS[trait] for trait in found))
    return (
        f"this host differs from the fleet {namespace}, so it may not join: {what}; correct "
        f"{settings}, or set IMAGEFLEET_MAY_DIFFER={','.join(found)} on this host to let it join"
    )


def differing_hosts(statuses: Iterable[WorkerStatus]) -> list[HostDifference]:
    """Return the workers that have another value than most have. Of values that equally many have,
    the one of the worker that started first counts as the usual one."""
    holders: defaultdict[tuple[Trait, str], list[tuple[WorkerStatus, str]]] = defaultdict(list)
    for status in sorted(members(statuses), key=lambda each: (each.started_at, each.worker)):
        for key, value in _values(status).items():
            if value:
                holders[key].append((status, value))
    return [
        difference
        for (trait, _), found in holders.items()
        for difference in _minorities(trait, found)
    ]


def shared_folders(statuses: Iterable[WorkerStatus]) -> Mapping[str, Sequence[str]]:
    """Return each `file://` store that workers of several hosts name, with these hosts: it is one
    store only if all of them mount the same folder there."""
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for status in members(statuses):
        if status.member is not None and status.member.store.startswith("file:"):
            hosts[status.member.store].add(host_of(status.worker))
    return {store: sorted(names) for store, names in hosts.items() if len(names) > 1}


def folder_warning(store: str, hosts: Sequence[str]) -> str:
    """Return the warning about one of `shared_folders`."""
    return (
        f"the workers of {counted(len(hosts), 'host')} ({', '.join(hosts)}) store images in "
        f"{store}, which is a folder of each host; unless all of them mount the same folder there, "
        "images lie on the host that made them: use a store that every host reaches"
    )


def _minorities(
    trait: Trait, found: Sequence[tuple[WorkerStatus, str]]
) -> Iterator[HostDifference]:
    [(usual, count)] = Counter(value for _, value in found).most_common(1)
    allowed = any(trait in _may_differ(status) for status, value in found if value == usual)
    for status, value in found:
        if value != usual:
            yield HostDifference(
                worker=status.worker,
                trait=trait,
                value=value,
                usual=usual,
                usual_workers=count,
                allowed=allowed or trait in _may_differ(status),
            )


def _values(status: WorkerStatus) -> dict[tuple[Trait, str], str]:
    """Return the values of a worker by trait and the model of which all workers must have it; '' is
    the whole fleet. Of its shapes the first is compared: it is that of jobs without a size, and
    jobs of another shape go only to workers that have it."""
    member = status.member
    if member is None:
        return {}
    default = {(Trait.MODEL, ""): status.model} if member.serves_default else {}
    return default | {
        (Trait.DIGEST, status.model): member.digest,
        (Trait.STORE, ""): member.store,
        (Trait.SHAPES, status.model): status.shapes[0] if status.shapes else "",
    }


def _may_differ(status: WorkerStatus) -> frozenset[str]:
    return frozenset() if status.member is None else frozenset(status.member.may_differ)


def _shown(value: str) -> str:
    return f"{value[:_MAX_DIGEST]}…" if value.startswith("sha256:") else value

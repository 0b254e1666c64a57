"""The client for asyncio has the methods of the client, with the same parameters."""

import inspect

import pytest

from imagefleet import AsyncClient, AsyncJob, Client, Job

_INTERNAL = {"await_jobs", "job_pages", "pop_ended", "submit_in_parts", "await_result"}
"""Methods that other modules of the producer call, and that no document names."""


def _methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


PAIRS = [
    pytest.param(kind, twin, name, id=f"{kind.__name__}.{name}")
    for kind, twin in ((Client, AsyncClient), (Job, AsyncJob))
    for name in [*sorted(_methods(kind) - _INTERNAL), "__init__"]
    if (kind, name) != (Job, "__init__")
]


@pytest.mark.parametrize(("kind", "twin", "name"), PAIRS)
def test_each_method_has_its_counterpart(kind: type, twin: type, name: str) -> None:
    ours, theirs = (inspect.signature(getattr(each, name)) for each in (kind, twin))
    described = [(each.name, each.kind, each.default) for each in ours.parameters.values()]
    assert [(e.name, e.kind, e.default) for e in theirs.parameters.values()] == described
    method = getattr(twin, name)
    assert name in ("__init__", "close") or (
        inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)
    )


@pytest.mark.parametrize(("kind", "twin"), [(Client, AsyncClient), (Job, AsyncJob)])
def test_there_is_no_method_for_asyncio_alone(kind: type, twin: type) -> None:
    assert _methods(twin) - _INTERNAL == _methods(kind) - _INTERNAL

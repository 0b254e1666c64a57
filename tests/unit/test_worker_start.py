"""What a worker does once its parts are built, before it takes work."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefleet.worker.settings.worker_settings import WorkerSettings
from imagefleet.worker.startup import bootstrap, lifecycle
from imagefleet.worker.startup.lifecycle import Lifecycle
from tests.support.engines import RecordingEngine


def _start(monkeypatch: pytest.MonkeyPatch, folder: Path, *, uses_host_memory: bool) -> list[str]:
    """Start a worker whose parts need no Redis. Return what it did to the memory of the process."""
    engine = RecordingEngine(8, lambda specs: None)
    monkeypatch.setattr(RecordingEngine, "uses_host_memory", uses_host_memory)
    offers = SimpleNamespace(announce=lambda *arguments, **options: None)
    fleet = SimpleNamespace(join=lambda: None, is_late=False)
    parts = SimpleNamespace(engine=engine, offers=offers, fleet=fleet)
    done: list[str] = []
    monkeypatch.setattr(lifecycle, "build", lambda *arguments: parts)
    monkeypatch.setattr(lifecycle, "return_large_buffers", lambda: done.append("returns buffers"))
    Lifecycle(WorkerSettings.load(model="fake", storage_url=f"file://{folder}")).start()
    return done


def test_the_log_of_a_ready_worker_names_its_model_and_where_images_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        _start(monkeypatch, tmp_path, uses_host_memory=True)
    [line] = caplog.messages
    assert line.startswith("ready after ")
    assert "model tiny, 8 images per batch, shapes 64x64, 64x128" in line
    assert line.endswith(f", images go to file://{tmp_path}/")


def test_large_buffers_are_returned_unless_the_devices_use_the_memory_of_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On CPU each step would get zeroed pages from the kernel."""
    assert _start(monkeypatch, tmp_path, uses_host_memory=False) == ["returns buffers"]
    assert _start(monkeypatch, tmp_path, uses_host_memory=True) == []


def test_the_parts_of_a_worker_are_built_without_collecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collector is off meanwhile, and later leaves out what was built."""
    builder: Any = SimpleNamespace(build=gc.isenabled)
    monkeypatch.setattr(bootstrap, "_Builder", lambda *_: builder)
    nothing: Any = None
    gc.unfreeze()
    was_enabled: object = bootstrap.build(nothing, nothing, nothing)
    assert was_enabled is False
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()

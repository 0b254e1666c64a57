"""Before a worker is ready it runs each program, few of them twice, and checks the results."""

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.compile.program_compiler import ProgramCompiler
from imagefleet.worker.engine.compile.stream_compiler import StreamCompiler
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import FOLDER

Start = Callable[[DiffusionEngine], object]
Wrap = Callable[[str, Any], Any]

ONCE: Final = ("encode", "step", "unguided_step", "preview", "decode")
STARTS: Final = pytest.mark.parametrize(
    ("compiler", "start", "twice"),
    [
        (ProgramCompiler, DiffusionEngine.warm, ("begin",)),
        (StreamCompiler, DiffusionEngine.open_streams, ("begin", "insert")),
    ],
    ids=["batch", "stream"],
)


def _engine(cache_dir: Path) -> DiffusionEngine:
    model = str(FOLDER / "older")
    engine = load_engine(model, devices=1, cache_dir=cache_dir, max_num_inference_steps=20)
    assert isinstance(engine, DiffusionEngine)
    return engine


def _wrap_programs(monkeypatch: pytest.MonkeyPatch, compiler: Any, wrap: Wrap) -> None:
    """Replace each compiled program by what `wrap` makes of its name and itself."""
    compile_all = compiler.compile

    def compile_and_wrap(self: Any, *arguments: Any) -> Any:
        executables = compile_all(self, *arguments)
        programs = {each.name: getattr(executables, each.name) for each in fields(executables)}
        return replace(
            executables,
            **{name: wrap(name, each) for name, each in programs.items() if each is not None},
        )

    monkeypatch.setattr(compiler, "compile", compile_and_wrap)


@STARTS
def test_only_cheap_programs_run_twice_before_a_worker_is_ready(
    compiler: Any,
    start: Start,
    twice: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    cache_dir: Path,
) -> None:
    runs: Counter[str] = Counter()

    def count(name: str, program: Any) -> Any:
        def run(*arguments: Any) -> Any:
            runs[name] += 1
            return program(*arguments)

        return run

    _wrap_programs(monkeypatch, compiler, count)
    start(_engine(cache_dir))
    assert runs == dict.fromkeys(ONCE, 1) | dict.fromkeys(twice, 2)


@STARTS
def test_a_worker_refuses_a_model_that_makes_nan_without_guidance_only(
    compiler: Any,
    start: Start,
    twice: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    cache_dir: Path,
) -> None:
    def break_unguided(name: str, program: Any) -> Any:
        def run(*arguments: Any) -> Any:
            state, done = program(*arguments)
            sharding = state.latents.sharding
            broken = np.full(state.latents.shape, np.nan, np.float32)
            return state._replace(latents=jax.device_put(broken, sharding)), done

        return run if name == "unguided_step" else program

    _wrap_programs(monkeypatch, compiler, break_unguided)
    engine = _engine(cache_dir)
    with pytest.raises(CheckpointError, match="make NaN or infinity of a test image"):
        start(engine)

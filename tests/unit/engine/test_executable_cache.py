"""The executable cache loads what it stored, and nothing that is damaged, foreign or different."""

import logging
import pickle
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Barrier

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError, StorageUnavailable
from imagefleet.shared.storage import ObjectStore, StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.compile import executable_cache, fingerprint
from imagefleet.worker.engine.compile.executable_cache import DeviceCopy, ExecutableCache
from imagefleet.worker.engine.compile.fingerprint import ENGINE_FOLDER, environment, source_digest
from imagefleet.worker.engine.compile.jax_compilation_cache import (
    CacheHits,
    CompileCounter,
    use_cache,
)
from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import SharedStores, load_engine
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from tests.unit.engine.parity import FOLDER

ENVIRONMENT: Mapping[str, str] = {"device": "cpu"}


class MeetingStore(MemoryStore):
    """A store whose answers wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.meeting: Barrier | None = None

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        if self.meeting is not None:
            self.meeting.wait(timeout=900)
        return super().get(key, max_bytes)


class UnreachableStore(MemoryStore):
    """A store that cannot be reached."""

    def get(self, key: str, max_bytes: int | None = None) -> bytes:
        raise StorageUnavailable("unreachable")

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        raise StorageUnavailable("unreachable")


def _cache(
    *stores: ObjectStore, environment: Mapping[str, str] = ENVIRONMENT, secret: bytes = b"s"
) -> ExecutableCache:
    return ExecutableCache(stores, environment, jax.local_devices()[:1], secret)


def _require_double(cache: ExecutableCache, length: int = 3) -> None:
    """Load or compile the program that doubles its input, and require the right result."""
    sharding = Placement.of(1).replicated
    array = jax.ShapeDtypeStruct((length,), np.float32, sharding=sharding)
    program = cache.load_or_compile(
        "2x2/double", array, lambda: jax.jit(lambda x: 2 * x).lower(array)
    )
    ones = jax.device_put(np.ones(length, np.float32), sharding)
    np.testing.assert_array_equal(program(ones), 2 * np.ones(length))


def _compiled_and_reloaded(cache: ExecutableCache) -> tuple[int, int]:
    return cache.compiled, cache.reloaded


def test_the_second_start_compiles_nothing() -> None:
    store = MemoryStore()
    for expected in ((1, 0), (0, 1)):
        cache = _cache(store)
        _require_double(cache)
        assert _compiled_and_reloaded(cache) == expected


def test_programs_are_loaded_at_the_same_time_and_the_missing_one_is_compiled() -> None:
    array = jax.ShapeDtypeStruct((3,), np.float32, sharding=Placement.of(1).replicated)
    ones = jax.device_put(np.ones(3, np.float32), array.sharding)
    lowerings = {
        f"2x2/times_{factor}": partial(lambda f: jax.jit(lambda x: f * x).lower(array), factor)
        for factor in (2, 3, 4)
    }
    store = MeetingStore()
    _cache(store).load_or_compile_all(
        {name: lower for name, lower in lowerings.items() if not name.endswith("3")}, array
    )
    store.meeting = Barrier(3)
    cache = _cache(store)
    programs = cache.load_or_compile_all(lowerings, array)
    assert [float(program(ones)[0]) for program in programs] == [2, 3, 4]
    assert _compiled_and_reloaded(cache) == (1, 2)


def test_other_inputs_or_another_environment_compile_another_program() -> None:
    store = MemoryStore()
    _require_double(_cache(store))
    for cache, length in ((_cache(store, environment={"device": "tpu"}), 3), (_cache(store), 4)):
        _require_double(cache, length)
        assert _compiled_and_reloaded(cache) == (1, 0)


def test_an_executable_of_a_farther_store_is_copied_to_the_nearer_one() -> None:
    near, far = MemoryStore(), MemoryStore()
    _require_double(_cache(far))
    _require_double(_cache(near, far))
    cache = _cache(near)
    _require_double(cache)
    assert _compiled_and_reloaded(cache) == (0, 1)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_or_foreign_file_is_replaced_and_not_opened(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    _require_double(_cache(store, secret=b"theirs" if damage == "foreign" else b"s"))
    [key] = store.list()
    whole = store.get(key)
    broken = {
        "cut": whole[:-1],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "empty": b"",
        "foreign": whole,
    }[damage]
    store.put(key, broken, "")
    with caplog.at_level(logging.WARNING):
        cache = _cache(store)
        _require_double(cache)
    assert _compiled_and_reloaded(cache) == (1, 0)
    assert "damaged or not signed with our secret" in caplog.text
    second = _cache(store)
    _require_double(second)
    assert _compiled_and_reloaded(second) == (0, 1)


def test_an_executable_stored_under_another_name_is_not_opened() -> None:
    store = MemoryStore()
    _require_double(_cache(store), 3)
    [three] = store.list()
    _require_double(_cache(store), 4)
    [four] = set(store.list()) - {three}
    store.put(four, store.get(three), "")
    cache = _cache(store)
    _require_double(cache, 4)
    assert _compiled_and_reloaded(cache) == (1, 0)


def _compile_double_ahead(cache: ExecutableCache) -> bool:
    array = jax.ShapeDtypeStruct((3,), np.float32, sharding=Placement.of(1).replicated)
    return cache.compile_ahead("2x2/double", array, lambda: jax.jit(lambda x: 2 * x).lower(array))


def test_what_is_compiled_ahead_is_loaded_later_and_not_compiled_twice() -> None:
    near, far = MemoryStore(), MemoryStore()
    assert _compile_double_ahead(_cache(near))
    assert not _compile_double_ahead(_cache(near, far))
    cache = _cache(far)
    _require_double(cache)
    assert _compiled_and_reloaded(cache) == (0, 1)


def test_a_damaged_file_is_compiled_ahead_again() -> None:
    store = MemoryStore()
    _compile_double_ahead(_cache(store))
    [key] = store.list()
    store.put(key, store.get(key)[:-1], "")
    assert _compile_double_ahead(_cache(store))
    assert not _compile_double_ahead(_cache(store))


def test_compiling_ahead_into_an_unreachable_store_fails() -> None:
    with pytest.raises(StorageUnavailable):
        _compile_double_ahead(_cache(MemoryStore(), UnreachableStore()))


def test_an_executable_of_another_runtime_is_named_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    _compile_double_ahead(_cache(store))
    [key] = store.list()
    cache = _cache(store)
    content = pickle.loads(store.get(key)[32:])
    of_another = pickle.dumps((content[0][:-100], *content[1:]))
    store.put(key, cache._sign(key, of_another) + of_another, "")
    with caplog.at_level(logging.WARNING):
        _require_double(cache)
    assert caplog.text.count("cannot be loaded, compiling it again") == 1
    assert _compiled_and_reloaded(cache) == (1, 0)
    second = _cache(store)
    _require_double(second)
    assert _compiled_and_reloaded(second) == (0, 1)


def test_a_copy_that_cannot_load_what_the_first_compiled_stores_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("the runtime loads it only on its own devices")

    monkeypatch.setattr(executable_cache, "load_elsewhere", refuse)
    first, second = Placement.of(2).copies()
    store = MemoryStore()

    def double_on(placement: Placement) -> ExecutableCache:
        cache = _cache(store)
        array = jax.ShapeDtypeStruct((3,), np.float32, sharding=placement.replicated)
        copy = DeviceCopy(devices=placement.device_list, first=first.device_list)
        program = cache.load_or_compile(
            "2x2/double", array, lambda: jax.jit(lambda x: 2 * x).lower(array), copy=copy
        )
        np.testing.assert_array_equal(program(placement.replicate(np.ones(3, np.float32))), 2)
        return cache

    assert _compiled_and_reloaded(double_on(first)) == (1, 0)
    assert _compiled_and_reloaded(double_on(second)) == (1, 0)
    assert _compiled_and_reloaded(double_on(second)) == (0, 1)
    assert _compiled_and_reloaded(double_on(first)) == (0, 1)


def test_the_first_compilation_says_for_what(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        _require_double(_cache(MemoryStore()))
    assert "compiling it for device=cpu" in caplog.text


def test_an_unreachable_store_only_costs_a_compilation() -> None:
    cache = _cache(UnreachableStore())
    _require_double(cache)
    assert _compiled_and_reloaded(cache) == (1, 0)


def test_an_executable_from_jaxs_own_cache_is_stored_complete(tmp_path: Path) -> None:
    # On CPU it has lost its functions and would fail when it runs, so it is compiled again.
    use_cache(tmp_path)
    _require_double(_cache(), 5)  # this fills JAX's cache
    jax.clear_caches()
    store, hits, compiled = MemoryStore(), CacheHits(), CompileCounter()
    _require_double(_cache(store), 5)
    assert (int(hits), int(compiled)) == (1, 2)
    second = _cache(store)
    _require_double(second, 5)
    assert _compiled_and_reloaded(second) == (0, 1)
    jax.clear_caches()
    _require_double(_cache(), 5)
    assert int(hits) == 2  # JAX's cache is used again


def test_source_mesh_and_compiler_settings_change_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("x = 1")
    before = source_digest(tmp_path)
    (tmp_path / "one.py").write_text("x = 2")
    assert source_digest(tmp_path) != before

    expected = environment(Placement.of(8))
    assert environment(Placement.of(8)) == expected
    assert environment(Placement.of(8, 2)) != expected
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert environment(Placement.of(8)) != expected


def test_the_fingerprint_covers_all_source_files_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(ENGINE_FOLDER, tmp_path / "engine"))
    placement = Placement.of(1)
    expected = environment(placement)
    monkeypatch.setattr(fingerprint, "ENGINE_FOLDER", copy)
    assert environment(placement) == expected
    for name in ("attention.py", "unet.py", "ddim.py", "weights.py"):
        [file] = copy.rglob(name)
        source = file.read_bytes()
        file.write_bytes(source + b"\n")
        assert environment(placement) != expected, name
        file.write_bytes(source)


def _engine(cache_dir: Path, store: ObjectStore | None) -> DiffusionEngine:
    engine = load_engine(
        str(FOLDER / "older"),
        devices=2,
        cache_dir=cache_dir,
        shared=SharedStores(executables=store, secret="s"),
        max_num_inference_steps=20,
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    return engine


def test_a_new_host_loads_every_program_from_the_store_and_generates_equal_images(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    first, second = (_engine(tmp_path / name, store) for name in ("one", "two"))
    assert _compiled_and_reloaded(first._executable_cache) == (second._executable_cache.reloaded, 0)
    assert second._executable_cache.compiled == 0
    assert (first.recompiles, second.recompiles) == (0, 0)
    spec = ImageSpec(prompt="a red circle", num_inference_steps=3, guidance_scale=3.0)
    one, two = (
        engine.start_batch([spec], engine.info.shapes[0]).images() for engine in (first, second)
    )
    np.testing.assert_array_equal(one, two)


def test_executables_are_shared_only_with_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs IMAGEFLEET_PROGRAMS_SECRET"):
        load_engine(
            "shapes",
            cache_dir=tmp_path,
            shared=SharedStores(executables=MemoryStore()),
        )

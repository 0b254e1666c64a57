"""What lies on the shelf is run; what is damaged, foreign or of other surroundings is not."""

import logging
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import pytest

from imagefleet.shared.errors import ConfigurationError, StorageUnavailable
from imagefleet.shared.storage import ObjectStore, StoredObject
from imagefleet.shared.storage.memory import MemoryStore
from imagefleet.worker.engine.compile.executable_cache import (
    ExecutableCache,
    source_digest,
    surroundings,
)
from imagefleet.worker.engine.compile.jax_cache import CacheHits, CompileCounter, use_cache
from imagefleet.worker.engine.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.interface import ImageSpec
from imagefleet.worker.engine.load import load_engine
from imagefleet.worker.engine.mesh import Placement
from tests.unit.engine.parity import FOLDER

HERE: Mapping[str, str] = {"device": "cpu"}


class Lost(MemoryStore):
    """A store whose network is away."""

    def get(self, key: str) -> bytes:
        raise StorageUnavailable("away")

    def put(self, key: str, data: bytes, content_type: str) -> StoredObject:
        raise StorageUnavailable("away")


def _shelf(
    *stores: ObjectStore, about: Mapping[str, str] = HERE, secret: bytes = b"s"
) -> ExecutableCache:
    return ExecutableCache(stores, about, jax.local_devices()[:1], secret)


def _double(shelf: ExecutableCache, length: int = 3) -> None:
    """The program is had and right."""
    here = Placement.of(1).everywhere
    of = jax.ShapeDtypeStruct((length,), np.float32, sharding=here)  # type: ignore[no-untyped-call]
    program = shelf.executable("2x2/double", of, lambda: jax.jit(lambda x: 2 * x).lower(of))
    ones = jax.device_put(np.ones(length, np.float32), here)
    np.testing.assert_array_equal(program(ones), 2 * np.ones(length))


def _made(shelf: ExecutableCache) -> tuple[int, int]:
    return shelf.compiled, shelf.reloaded


def test_the_second_start_compiles_nothing() -> None:
    store = MemoryStore()
    for expected in ((1, 0), (0, 1)):
        shelf = _shelf(store)
        _double(shelf)
        assert _made(shelf) == expected


def test_other_inputs_or_surroundings_are_another_program() -> None:
    store = MemoryStore()
    _double(_shelf(store))
    for shelf, length in ((_shelf(store, about={"device": "tpu"}), 3), (_shelf(store), 4)):
        _double(shelf, length)
        assert _made(shelf) == (1, 0)


def test_what_a_far_store_has_is_put_into_the_near_one() -> None:
    near, far = MemoryStore(), MemoryStore()
    _double(_shelf(far))
    _double(_shelf(near, far))
    shelf = _shelf(near)
    _double(shelf)
    assert _made(shelf) == (0, 1)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_a_damaged_or_foreign_file_is_not_opened_but_replaced(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    _double(_shelf(store, secret=b"theirs" if damage == "foreign" else b"s"))
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
        shelf = _shelf(store)
        _double(shelf)
    assert _made(shelf) == (1, 0)
    assert "damaged or not sealed by us" in caplog.text
    again = _shelf(store)
    _double(again)
    assert _made(again) == (0, 1)


def test_one_program_cannot_be_passed_off_as_another() -> None:
    store = MemoryStore()
    _double(_shelf(store), 3)
    [three] = store.list()
    _double(_shelf(store), 4)
    [four] = set(store.list()) - {three}
    store.put(four, store.get(three), "")
    shelf = _shelf(store)
    _double(shelf, 4)
    assert _made(shelf) == (1, 0)


def test_a_store_that_is_away_costs_a_compilation_and_no_more() -> None:
    shelf = _shelf(Lost())
    _double(shelf)
    assert _made(shelf) == (1, 0)


def test_a_program_out_of_jaxs_own_cache_is_shelved_whole(tmp_path: Path) -> None:
    # On CPU it has lost its functions, and would fail as it runs: it is compiled once more.
    use_cache(tmp_path)
    _double(_shelf(), 5)  # into the cache
    jax.clear_caches()
    store, hits, compiled = MemoryStore(), CacheHits(), CompileCounter()
    _double(_shelf(store), 5)
    assert (int(hits), int(compiled)) == (1, 2)
    again = _shelf(store)
    _double(again, 5)
    assert _made(again) == (0, 1)
    jax.clear_caches()
    _double(_shelf(), 5)
    assert int(hits) == 2  # the cache goes on as before


def test_the_fingerprint_follows_source_mesh_and_compiler_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("x = 1")
    before = source_digest(tmp_path)
    (tmp_path / "one.py").write_text("x = 2")
    assert source_digest(tmp_path) != before

    here = surroundings(Placement.of(8))
    assert surroundings(Placement.of(8)) == here
    assert surroundings(Placement.of(8, 2)) != here
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    assert surroundings(Placement.of(8)) != here


def _engine(cache_dir: Path, store: ObjectStore | None) -> DiffusionEngine:
    engine = load_engine(
        str(FOLDER / "older"),
        devices=2,
        cache_dir=cache_dir,
        programs=store,
        programs_secret="s",
        max_num_inference_steps=20,
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    return engine


def test_a_new_host_takes_every_program_from_the_store_and_paints_the_same(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    first, second = (_engine(tmp_path / name, store) for name in ("one", "two"))
    assert _made(first._shelf) == (second._shelf.reloaded, 0)
    assert second._shelf.compiled == 0
    assert (first.recompiles, second.recompiles) == (0, 0)
    spec = ImageSpec(prompt="a red circle", num_inference_steps=3, guidance_scale=3.0)
    one, two = (
        engine.render([spec], engine.info.shapes[0]).pictures() for engine in (first, second)
    )
    np.testing.assert_array_equal(one, two)


def test_programs_are_shared_only_under_a_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs IMAGEFLEET_PROGRAMS_SECRET"):
        load_engine("shapes", cache_dir=tmp_path, programs=MemoryStore())

"""Encoded texts are kept by their tokens, within a number of bytes, and change no image."""

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.placement.memory_check import MemoryNeed
from imagefleet.worker.engine.runtime.text_cache import TextCache
from imagefleet.worker.engine.sampling.arrays import BatchInputs
from imagefleet.worker.engine.sampling.empty_batch import EmptyBatch
from tests.unit.engine.text_stores import DictStore

TOKENS: Final = 5
WIDTH: Final = 3
BYTES: Final = 4 * TOKENS * WIDTH
"""A text has this many bytes when it is encoded."""
EMPTY: Final = EmptyBatch(
    slots=3,
    calls=4,
    token_lengths=(TOKENS,),
    latent_channels=4,
    pixels_per_latent=8,
    text_width=WIDTH,
)


class _Encoder:
    """It maps a token to its number, and counts its calls."""

    def __init__(self, at_once: int) -> None:
        self.at_once, self.texts = at_once, list[int]()

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        assert ids.shape == (self.at_once, TOKENS)
        self.texts += [int(text[0]) for text in ids]
        return np.repeat(ids[..., None], WIDTH, axis=2).astype(np.float32)


def _inputs(*pairs: tuple[int, int]) -> BatchInputs:
    """Return a batch whose slots have these texts; the other slots are padding."""
    inputs = EMPTY.inputs()
    for slot, pair in enumerate(pairs):
        inputs.calls[slot] = 2
        inputs.tokens[0][slot, :, 0] = np.array(pair)[:, None]
    return inputs


def _states(*pairs: tuple[int, int]) -> NDArray[np.float32]:
    states = np.zeros((3, 2, TOKENS, WIDTH), np.float32)
    for slot, pair in enumerate(pairs):
        states[slot] = np.array(pair, np.float32)[:, None, None]
    return states


def test_each_text_of_a_batch_is_encoded_once_and_those_of_padding_never() -> None:
    for most in (0, 10_000):
        cache, encode = TextCache(most), _Encoder(2)
        filled = cache.fill(_inputs((1, 7), (1, 8)), encode, 2)
        np.testing.assert_array_equal(filled.text_states, _states((1, 7), (1, 8)))
        assert encode.texts == [1, 7, 8, 8]  # the last one fills the program
        assert (cache.use.hits, cache.use.misses) == (0, 3)


def test_a_text_that_is_kept_is_not_encoded_again() -> None:
    cache, encode = TextCache(10_000), _Encoder(1)
    first = cache.fill(_inputs((1, 7)), encode, 1)
    again = cache.fill(_inputs((1, 9), (7, 1)), encode, 1)
    np.testing.assert_array_equal(first.text_states, _states((1, 7)))
    np.testing.assert_array_equal(again.text_states, _states((1, 9), (7, 1)))
    assert encode.texts == [1, 7, 9]
    assert (cache.use.hits, cache.use.misses, cache.use.bytes) == (2, 3, 3 * BYTES)


def test_what_the_program_of_one_shape_made_is_not_used_for_another() -> None:
    cache, encode = TextCache(10_000), _Encoder(1)
    for shape in ("64x64", "64x48", "64x64"):
        cache.fill(_inputs((1, 2)), encode, 1, shape)
    assert encode.texts == [1, 2, 1, 2]


def test_the_latest_used_texts_are_kept_within_the_bytes() -> None:
    cache, encode = TextCache(2 * BYTES), _Encoder(1)
    cache.fill(_inputs((1, 2)), encode, 1)
    cache.fill(_inputs((1, 3)), encode, 1)  # 2 was used before 1
    assert cache.use.bytes == 2 * BYTES
    encode.texts.clear()
    cache.fill(_inputs((1, 3)), encode, 1)
    assert encode.texts == []
    cache.fill(_inputs((2, 2)), encode, 1)
    assert encode.texts == [2]


def test_nothing_is_kept_in_too_few_bytes() -> None:
    cache, encode = TextCache(BYTES - 1), _Encoder(1)
    for _ in range(2):
        cache.fill(_inputs((1, 2)), encode, 1)
    assert encode.texts == [1, 2, 1, 2]
    assert cache.use.bytes == 0


def test_states_that_are_not_finite_are_not_kept() -> None:
    """Those of a failing device would come back when the job is tried again."""
    cache, encode = TextCache(10_000), _Encoder(1)

    def failing(ids: NDArray[np.int32]) -> NDArray[Any]:
        return encode(ids) * np.nan

    broken = cache.fill(_inputs((1, 2)), failing, 1)
    assert np.isnan(broken.text_states[0]).all()
    mended = cache.fill(_inputs((1, 2)), encode, 1)
    np.testing.assert_array_equal(mended.text_states, _states((1, 2)))


def test_a_cache_takes_texts_from_the_store_that_another_one_of_its_scope_wrote() -> None:
    store, encode = DictStore(), _Encoder(1)
    first = TextCache(10_000, store=store, scope="a").fill(_inputs((1, 7)), encode, 1, "64x64")
    cache = TextCache(10_000, store=store, scope="a")
    for _ in range(2):
        filled = cache.fill(_inputs((1, 7)), encode, 1, "64x64")
        np.testing.assert_array_equal(filled.text_states, first.text_states)
    assert encode.texts == [1, 7]
    assert (cache.use.stored, cache.use.hits, cache.use.misses) == (2, 2, 0)
    for scope, shape in (("b", "64x64"), ("a", "64x48")):
        TextCache(10_000, store=store, scope=scope).fill(_inputs((1, 7)), encode, 1, shape)
    assert encode.texts == [1, 7] * 3
    assert sorted(name.split("/")[0] for name in store.contents) == [*"aaaa", *"bb"]


def test_a_store_gets_no_states_that_are_not_finite_and_no_trial() -> None:
    store, encode = DictStore(), _Encoder(1)
    cache = TextCache(0, store=store)
    cache.fill(_inputs((1, 2)), lambda ids: encode(ids) * np.nan, 1)
    cache.for_trial().fill(_inputs((1, 2)), encode, 1)
    assert store.contents == {}
    cache.fill(_inputs((1, 2)), encode, 1)
    assert len(store.contents) == 2


def test_a_model_that_encodes_within_its_programs_keeps_nothing() -> None:
    inputs = replace(EMPTY, text_width=0).inputs()
    assert inputs.text_states is None
    assert TextCache(10_000).fill(inputs, _Encoder(1), 1) is inputs


def test_the_memory_of_the_host_does_not_count_for_each_device() -> None:
    need = MemoryNeed(weights=3, workspace=4, host=5)
    assert need.total == 7

"""A device with several images encodes and decodes one after the other."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from imagefleet.worker.engine.compile.program_compiler import one_image_at_a_time
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import SamplerState
from tests.unit.engine.parity import Oracle
from tools.tpu.programs import lower_programs

COLLECTIVE = re.compile(r"all-(gather|reduce|to-all)|collective-permute")


def test_slots_keep_their_order() -> None:
    seen = []

    def program(weights: int, slots: tuple[jax.Array, jax.Array]) -> jax.Array:
        seen.append(slots[0].shape)
        return weights * slots[0] + slots[1][:, 0]

    numbers, more = np.arange(6), np.full((6, 2), 100)
    for copies in (1, 2, 3, 6):
        result = one_image_at_a_time(program, copies)(10, (numbers, more))
        np.testing.assert_array_equal(result, 10 * numbers + 100)
    assert seen == [(1,), (2,), (3,), (6,)]


def test_decoded_images_are_those_of_all_slots_at_once() -> None:
    oracle = Oracle.read("older")
    latents = jax.random.normal(jax.random.key(0), (4, 8, 8, 4))
    state = SamplerState(latents, latents[:, None], jnp.zeros(4, jnp.int32), latents)
    decode, weights = oracle.programs.decode, oracle.weights
    at_once = jax.jit(decode)(weights, state)
    in_turn = jax.jit(one_image_at_a_time(decode, 2))(weights, state)
    difference = np.asarray(at_once.images, int) - np.asarray(in_turn.images, int)
    assert np.abs(difference).max() <= 1
    assert len({image.tobytes() for image in np.asarray(in_turn.images)}) == 4
    np.testing.assert_array_equal(at_once.finite, in_turn.finite)


def test_devices_exchange_nothing_for_it() -> None:
    oracle = Oracle.read("older")
    shape = Shape(height=64, width=64)
    programs = lower_programs(
        oracle.model,
        shape,
        Placement.of(2),
        per_device_batch=2,
        dtype=np.dtype(np.float32),
    )
    for name in ("encode", "decode"):
        text = programs[name]().compile().as_text()
        assert text is not None
        assert not COLLECTIVE.search(text), name

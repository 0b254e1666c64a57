"""Compile for a TPU host that is not here: `compile_for_host.py WHAT HOST`.

WHAT is `layers` or `memory`. The output is one line of JSON: for each thing that was compiled, the
compiler's error or null. libtpu must be installed. It stays loaded, so this script runs in a
process of its own.
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from imagefleet.worker.engine.attention import AttentionSpec, attention
from imagefleet.worker.engine.attention_layers import attention_layers
from imagefleet.worker.engine.compile.program_compiler import Lower
from imagefleet.worker.engine.mesh import Placement
from imagefleet.worker.engine.tpu_hosts import TPU_HOSTS
from imagefleet.worker.engine.tpu_topology import placement_of
from tools.tpu.models import SHAPES, configs_of
from tools.tpu.programs import BFLOAT16


def layers(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield every distinct attention layer of the published models in bfloat16."""
    placement = placement_of(host, devices=1)
    specs = {
        spec
        for model, shape in SHAPES.items()
        for spec in attention_layers(configs_of(model), shape, BFLOAT16)
    }
    for spec in sorted(specs, key=str):
        yield str(spec), partial(_compile_layer, spec, placement)


def _compile_layer(spec: AttentionSpec, placement: Placement) -> None:
    def abstract(length: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(
            (2, length, spec.heads * spec.head_dim), spec.dtype, sharding=placement.replicated
        )

    compute = jax.jit(partial(attention, heads=spec.heads, causal=spec.causal))
    with jax.set_mesh(placement.mesh):
        lowered = compute.lower(*map(abstract, (spec.queries, spec.keys, spec.keys)))
    lowered.compile()


def _compile(lower: Lower) -> None:
    lower().compile()


def memory(host: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield a program that takes nine tenths of the memory, and one that takes eleven tenths."""
    placement, available = placement_of(host, devices=1), TPU_HOSTS[host].generation.memory_bytes
    for tenths in (9, 11):
        # The argument and the result are in memory at the same time.
        count = available * tenths // 10 // 2 // 4
        numbers = jax.ShapeDtypeStruct(
            (count // 1024, 1024), jnp.float32, sharding=placement.replicated
        )
        yield f"{tenths}/10", partial(_compile, partial(jax.jit(jnp.negative).lower, numbers))


def error_of(compile_it: Callable[[], object]) -> str | None:
    """Return the first line of the compiler's error, if it raises one."""
    try:
        compile_it()
    except Exception as error:  # the compiler, Mosaic and JAX raise errors of many types
        return str(error).strip().splitlines()[0]
    return None


def main(what: str, *arguments: str) -> None:
    jax.config.update("jax_platforms", "cpu")  # with libtpu here, JAX would look for a TPU
    compiled: Any = {"layers": layers, "memory": memory}[what]
    print(json.dumps({name: error_of(compile_it) for name, compile_it in compiled(*arguments)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

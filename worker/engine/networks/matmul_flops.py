"""Count the FLOPs of a function's products and convolutions.

Input: a function and abstract arguments. Output: a number. Nothing is compiled or computed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.typing import DTypeLike

from imagefleet.worker.engine.networks.peak_shares import PeakShares


@dataclass(frozen=True, kw_only=True)
class ImageFlops:
    """It has the FLOPs of one image, as `matmul_flops` counts them."""

    text: int
    """They are those of the text encoders, for the prompt and its negative prompt."""
    step: int
    """They are those of one step with guidance: of all runs of the denoiser that guidance needs."""
    decode: int
    """They are those of the decoder and the safety checker."""
    peak_shares: Mapping[str, PeakShares] = field(default_factory=dict)
    """It has the shares of the peak that the programs reach, by the generation of TPUs."""

    def total(self, steps: int) -> int:
        """Return the FLOPs of an image with this many steps."""
        return self.text + steps * self.step + self.decode


def matmul_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the FLOPs of all matrix products and convolutions: two for each multiply-add.

    Sums, norms and activations are not counted: TPUs compute them on other units.
    """
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def network_flops(network: nnx.Module, *inputs: Any) -> int:
    """Return the FLOPs of a call of a network with abstract inputs. Its weights are bfloat16."""
    return matmul_flops(*call_of(network, lambda network, *inputs: network(*inputs), *inputs))


def call_of(network: nnx.Module, method: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
    """Return a function of a network's weights and inputs, and its abstract arguments."""
    structure = nnx.graphdef(network)
    weights = jax.tree.map(
        lambda weight: abstract_array(*weight.shape), nnx.to_pure_dict(nnx.state(network))
    )

    def run(weights: Any, *inputs: Any) -> Any:
        return method(nnx.merge(structure, weights), *inputs)

    return run, weights, *inputs


def abstract_array(*shape: int, dtype: DTypeLike = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    """Return an array that has a shape and a dtype only."""
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _count(jaxpr: Jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation: Any) -> int:
    name, parameters = equation.primitive.name, equation.params
    if name not in ("dot_general", "conv_general_dilated"):
        if name == "cond":  # one branch runs, and the largest is counted
            return max(map(_count, _inner(parameters["branches"])))
        trips: int = parameters["length"] if name == "scan" else 1
        return trips * sum(map(_count, _inner(parameters.values())))
    left, right = (operand.aval.shape for operand in equation.invars)
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        terms: int = math.prod(left[axis] for axis in contracted)
    else:
        terms = math.prod(right) // int(right[parameters["dimension_numbers"].rhs_spec[0]])
    results: int = math.prod(equation.outvars[0].aval.shape)
    return 2 * results * terms


def _inner(values: Any) -> Iterator[Jaxpr]:
    """Yield the functions that an equation calls."""
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inner(value)

"""Compile one program for a TPU host and keep the compiler's account of it.

Input: a model, a host, a mesh, a number of images and a program. Output: the account, or why the
compiler refused. Results are cached in a folder, because a large program takes minutes.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from pathlib import Path

import jax
from flax import nnx

from imagefleet.worker.engine.compile.fingerprint import ENGINE_FOLDER, source_digest
from imagefleet.worker.engine.compile.program_compiler import Lower
from imagefleet.worker.engine.families.family_protocol import FamilyModel
from imagefleet.worker.engine.loading.memory_need import memory_need
from imagefleet.worker.engine.placement.memory_check import MemoryNeed, Workload
from imagefleet.worker.engine.placement.tpu_hosts import TPU_HOSTS
from imagefleet.worker.engine.placement.tpu_topology import placement_of
from tools.parity.flow.published import FLOW_MODELS
from tools.parity.published import PUBLISHED
from tools.tpu.estimate import Estimate, read_estimate
from tools.tpu.lora_file import count_numbers
from tools.tpu.models import BLOCKS, published_model, shape_of
from tools.tpu.programs import BFLOAT16, lower_programs


class Outcome(StrEnum):
    """The outcome says what the compiler made of a program."""

    COMPILES = "compiles"
    TOO_LARGE = "too large"
    """The program needs more memory than the device has."""
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row is one program of a model on a host."""

    model: str
    host: str
    program: str
    per_device_batch: int = 1
    """Images that each copy of the weights generates at a time."""
    devices_per_copy: int = 1
    """The size of the axis `model` of the mesh."""
    streams: bool = False
    """Whether the program is that of a stream, instead of a whole batch."""
    loras: int = 0
    """LoRA that jobs may use."""
    prompt_chunks: int = 0
    """The most chunks of a prompt with weights."""
    int8_weights: bool = False
    """Whether the weights of blocks are integers of 8 bits."""
    host_text_encoder: bool = False
    """Whether the host encodes texts."""
    few_blocks: bool = False
    """Whether the program is not compiled whole, but computed from programs with one block of each
    kind, and with two of one kind."""
    blocks: tuple[int, ...] = ()
    """It has the numbers of blocks in the order of `models.BLOCKS`. Empty: the published ones."""
    quick: bool = False
    """Whether the compiler optimizes little. It then takes a third of the time or less and says
    whether the program compiles and fits, but its cycles say nothing."""

    @property
    def group(self) -> "Row":
        """Return what the rows have in common that one batch or stream runs."""
        return replace(self, program="")

    @property
    def source(self) -> FamilyModel:
        """Return the model."""
        return published_model(self.model, int8_weights=self.int8_weights, blocks=self.blocks)


@dataclass(frozen=True, kw_only=True)
class Account:
    """The compiler's account of a row."""

    outcome: Outcome
    message: str = ""
    """The compiler's error."""
    seconds: float
    """How long it took."""
    estimate: Estimate | None = None


def memory_need_of(row: Row) -> MemoryNeed:
    """Return the bytes that a device needs for the row's batch, by the worker's own account."""
    workload = Workload(
        dtype=BFLOAT16,
        platform="tpu",
        device_kind=TPU_HOSTS[row.host].generation.device_kind,
        model=row.devices_per_copy,
        per_device_batch=row.per_device_batch,
        streams=row.streams,
        prompt_chunks=row.prompt_chunks,
        host_text_encoder=row.host_text_encoder,
    )
    networks = _networks(row.model, row.int8_weights)
    need = memory_need(row.source, networks, (shape_of(row.model),), workload)
    factors = row.loras * count_numbers(row.source) * BFLOAT16.itemsize if row.loras else 0
    return replace(need, weights=need.weights + factors)


def fails(row: Row, result: Account) -> bool:
    """Return whether a worker would fail with this program, and not know it before it compiles."""
    if result.outcome is Outcome.TOO_LARGE:
        return memory_need_of(row).total <= TPU_HOSTS[row.host].generation.memory_bytes
    return result.outcome is Outcome.REFUSED


@cache
def _networks(model: str, int8_weights: bool) -> dict[str, nnx.Module]:
    return published_model(model, int8_weights=int8_weights).networks()


def account(row: Row, cache_folder: Path) -> Account:
    """Return the compiler's account of a row, from the cache if it is there."""
    if row.few_blocks:
        return _account_of_few_blocks(row, cache_folder)
    path = cache_folder / f"{_key(row)}.json"
    if path.is_file():
        stored = json.loads(path.read_text())["account"]
        estimate = stored.pop("estimate")
        outcome = Outcome(stored.pop("outcome"))
        return Account(outcome=outcome, estimate=estimate and Estimate(**estimate), **stored)
    made = _compile(row)
    cache_folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"row": asdict(row), "account": asdict(made)}))
    return made


def _account_of_few_blocks(row: Row, cache_folder: Path) -> Account:
    whole = [*BLOCKS[row.model].values()]
    kinds = range(len(whole))
    counts = [tuple(1 for _ in kinds), *(tuple(1 + (n == kind) for n in kinds) for kind in kinds)]
    least, *more = (
        account(replace(row, few_blocks=False, blocks=each), cache_folder) for each in counts
    )
    estimates = [(each.estimate, count - 1) for each, count in zip(more, whole, strict=True)]
    known = [(estimate, count) for estimate, count in estimates if estimate is not None]
    if least.estimate is None or len(known) < len(more):
        return next(each for each in (least, *more) if each.estimate is None)
    seconds = sum(each.seconds for each in (least, *more))
    return replace(least, seconds=seconds, estimate=least.estimate.with_blocks(known))


def _compile(row: Row) -> Account:
    lower = lowerings(row.group)[row.program]
    started = time.monotonic()
    jax.config.update(  # type: ignore[no-untyped-call]
        "jax_exec_time_optimization_effort", -1.0 if row.quick else 0.0
    )
    try:
        compiled = lower().compile()
    except Exception as error:  # the compiler, Mosaic and JAX raise errors of many types
        message = str(error).strip().splitlines()[0]
        too_large = "RESOURCE_EXHAUSTED" in message and "HBM" in message.upper()
        outcome = Outcome.TOO_LARGE if too_large else Outcome.REFUSED
        return Account(outcome=outcome, message=message, seconds=time.monotonic() - started)
    seconds = time.monotonic() - started
    generation = TPU_HOSTS[row.host].generation
    estimate = read_estimate(compiled, generation, row.devices_per_copy)
    return Account(outcome=Outcome.COMPILES, seconds=seconds, estimate=estimate)


@cache
def lowerings(group: Row) -> dict[str, Lower]:
    """Return for each program of a batch or stream the function that lowers it."""
    return lower_programs(
        group.source,
        shape_of(group.model),
        placement_of(group.host, model=group.devices_per_copy),
        per_device_batch=group.per_device_batch,
        streams=group.streams,
        loras=group.loras,
        prompt_chunks=group.prompt_chunks,
        host_text_encoder=group.host_text_encoder,
    )


def _key(row: Row) -> str:
    libraries = [version(name) for name in ("jax", "jaxlib", "flax")] + [libtpu_version()]
    parts = [
        *libraries,
        source_digest(ENGINE_FOLDER),
        source_digest(Path(__file__).parent),
        json.dumps({**PUBLISHED, **FLOW_MODELS}[row.model]),
        json.dumps(asdict(row)),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def libtpu_version() -> str:
    """Return the version of the compiler."""
    return version("libtpu")

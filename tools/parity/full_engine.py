"""A published UNet as the engine runs it, against PyTorch's answer.

    .venv/bin/python -m tools.parity.full_engine FOLDER

Goes in: the folder that `tools.parity.full_torch` wrote. Comes out: one line of JSON.
"""

import json
import math
import resource
import sys
import time
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import load_file

from imagefleet.worker.engine.build import abstract
from imagefleet.worker.engine.checkpoint.files import TensorFiles, read_json
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, entries, require_complete
from imagefleet.worker.engine.mesh import Placement, start_backend
from imagefleet.worker.engine.models.unet import UNet
from imagefleet.worker.engine.models.unet_config import UNetConfig


def main(folder: Path) -> None:
    start_backend(1)
    unet = abstract(UNet, UNetConfig.from_json(read_json(folder / "config.json")))
    plan = WeightMapping("unet", unet, TensorFiles(folder))
    require_complete([plan])
    started = time.perf_counter()
    weights = plan.load(np.dtype(np.float32), Placement.of(1))
    loaded = time.perf_counter()
    given = load_file(folder / "answers.safetensors")
    graph, time_ids = nnx.graphdef(unet), given.get("time_ids", np.zeros((1, 0)))[0]

    def denoise(weights: object, given: dict[str, jax.Array]) -> jax.Array:
        network = nnx.merge(graph, weights)
        read = network.read(given["text"], given.get("pooled"), time_ids)
        return network(given["latents"].transpose(0, 2, 3, 1), given["times"], read)

    named = {name: given[name] for name in ("latents", "times", "text", "pooled") if name in given}
    compiled = jax.jit(denoise).lower(weights, named).compile()
    ready = time.perf_counter()
    out = np.asarray(compiled(weights, named).block_until_ready()).transpose(0, 3, 1, 2)
    seconds = time.perf_counter() - ready
    apart = np.abs(out - given["out"])
    found = {
        "parameters": sum(math.prod(entry.shape) for entry in entries("unet", unet)),
        "largest_output": float(np.abs(given["out"]).max()),
        "max_difference": float(apart.max()),
        "mean_difference": float(apart.mean()),
        "relative": float(apart.max() / np.abs(given["out"]).max()),
        "load_s": loaded - started,
        "compile_s": ready - loaded,
        "seconds": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

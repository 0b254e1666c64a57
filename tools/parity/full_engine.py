"""Run a published UNet in the engine and compare its output with PyTorch's.

    .venv/bin/python -m tools.parity.full_engine FOLDER

Input: the folder that `tools.parity.full_torch` wrote. Output: one line of JSON.
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

from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles, read_json
from imagefleet.worker.engine.checkpoint.weights import (
    WeightMapping,
    require_complete,
    weight_entries,
)
from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.placement.mesh import Placement, start_backend


def main(folder: Path) -> None:
    start_backend(1)
    unet = abstract_network(UNet, UNetConfig.from_json(read_json(folder / "config.json")))
    mapping = WeightMapping(
        "unet", unet, CheckpointFiles(folder.parent).open_weights(["unet"])["unet"]
    )
    require_complete([mapping])
    started = time.perf_counter()
    weights = mapping.load(np.dtype(np.float32), Placement.of(1))
    loaded = time.perf_counter()
    tensors = load_file(folder / "answers.safetensors")
    graph, time_ids = nnx.graphdef(unet), tensors.get("time_ids", np.zeros((1, 0)))[0]

    def denoise(weights: object, inputs: dict[str, jax.Array]) -> jax.Array:
        network = nnx.merge(graph, weights)
        prompt = network.project_context(inputs["text"], inputs.get("pooled"), time_ids)
        return network(inputs["latents"].transpose(0, 2, 3, 1), inputs["times"], prompt)

    names = ("latents", "times", "text", "pooled")
    inputs = {name: tensors[name] for name in names if name in tensors}
    compiled = jax.jit(denoise).lower(weights, inputs).compile()
    ready = time.perf_counter()
    out = np.asarray(compiled(weights, inputs).block_until_ready()).transpose(0, 3, 1, 2)
    seconds = time.perf_counter() - ready
    difference = np.abs(out - tensors["out"])
    result = {
        "parameters": sum(math.prod(entry.shape) for entry in weight_entries(unet)),
        "largest_output": float(np.abs(tensors["out"]).max()),
        "max_difference": float(difference.max()),
        "mean_difference": float(difference.mean()),
        "relative": float(difference.max() / np.abs(tensors["out"]).max()),
        "load_s": loaded - started,
        "compile_s": ready - loaded,
        "seconds": seconds,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

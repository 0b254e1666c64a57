"""Measure the peak of host memory while weights are loaded, against the size of the weights.

`python -m benchmarks.loading` writes a UNet of 0.5 GB with random weights to a temporary folder and
loads it in one process for each mesh. On a CPU the devices' memory is the host's, so the peak
includes the weights themselves; the rest of it is the cost of loading.

It does not show accelerators, which have their own memory, or the file's pages, which the system
reclaims when it needs them.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.report import print_json

MESHES = ("data=1", "data=1,model=2", "data=2,model=2")
CONFIG = {
    "_class_name": "UNet2DConditionModel",
    "sample_size": 64,
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
    "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
    "cross_attention_dim": 768,
    "attention_head_dim": 8,
}
FILE = "diffusion_pytorch_model.safetensors"
MIB = 2**20


def write(folder: Path) -> None:
    """Write a UNet with random weights, in diffusers format."""
    from safetensors.numpy import save_file

    from imagefleet.worker.engine.checkpoint.weights import weight_entries
    from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
    from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
    from imagefleet.worker.engine.networks.abstract_network import abstract_network

    draw = np.random.default_rng(0).standard_normal
    network = abstract_network(UNet, UNetConfig.from_json(CONFIG))
    tensors = {
        entry.key: draw(entry.stored_shapes[0], dtype=np.float32)
        for entry in weight_entries(network)
    }
    save_file(tensors, folder / FILE)


def resident() -> float:
    """Return the resident MiB of this process, without the pages of files."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


class Peak:
    """The peak of resident memory in MiB, sampled by a thread every 2 ms."""

    def __init__(self) -> None:
        self.mib = resident()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return max(self.mib, resident())

    def _watch(self) -> None:
        while not self._ended.wait(0.002):
            self.mib = max(self.mib, resident())


def load(folder: Path, mesh: str) -> None:
    """Load the weights in this process, and print what it took as JSON."""
    import jax

    from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
    from imagefleet.worker.engine.checkpoint.weights import WeightMapping
    from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
    from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
    from imagefleet.worker.engine.networks.abstract_network import abstract_network
    from imagefleet.worker.engine.options.mesh_spec import MeshSpec
    from imagefleet.worker.engine.placement.mesh import Placement, start_backend

    layout = MeshSpec.parse(mesh, None)
    start_backend(layout.devices)
    placement = Placement.of(layout.devices, layout.model)
    plan = WeightMapping(
        "unet", abstract_network(UNet, UNetConfig.from_json(CONFIG)), TensorFiles([folder / FILE])
    )
    before, peak, begun = resident(), Peak(), time.perf_counter()
    weights = jax.block_until_ready(plan.load(np.dtype(np.float32), placement))
    seconds, most = time.perf_counter() - begun, peak.end()
    shards = [s for array in jax.tree.leaves(weights) for s in array.addressable_shards]
    row = {
        "per_device": sum(s.data.nbytes for s in shards if s.device.id == 0) / MIB,
        "all_devices": sum(s.data.nbytes for s in shards) / MIB,
        "peak": most - before,
        "with_files": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": seconds,
    }
    print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        load(Path(options.row[0]), options.row[1])
        return
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / MIB
        for mesh in MESHES:
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.loading", "--row", folder, mesh],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            rows[mesh] = json.loads(child.stdout.strip().splitlines()[-1])
    names = list(next(iter(rows.values())))
    print(f"file {size:.0f} MiB; MiB and seconds")
    print(f"{'mesh':<16}" + "".join(f"{name:>13}" for name in names))
    for mesh, row in rows.items():
        print(f"{mesh:<16}" + "".join(f"{row[name]:>13.1f}" for name in names))
    print_json("loading", {"file_mib": round(size), "meshes": rows})


if __name__ == "__main__":
    main()

"""What loading takes of the host's memory: the peak against the size of the file and of what lies
on the devices afterwards.

`python benchmarks/loading.py`. A UNet of 0.5 GB with random weights is written to a temporary
folder; a process for each mesh loads it. On a CPU the devices' memory is the host's, so the weights
themselves are in the peak: what is above them is what loading took.

What it does not show: accelerators, whose memory is their own; the file's pages, which the system
takes back when it needs them.
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
MIB = 2**20


def write(folder: Path) -> None:
    """A UNet with random weights, in diffusers' format."""
    from safetensors.numpy import save_file

    from imagefleet.worker.engine.build import abstract
    from imagefleet.worker.engine.checkpoint.weights import entries
    from imagefleet.worker.engine.models.unet import UNet
    from imagefleet.worker.engine.models.unet_config import UNetConfig

    draw = np.random.default_rng(0).standard_normal
    network = abstract(UNet, UNetConfig.from_json(CONFIG))
    tensors = {
        entry.key: draw(entry.stored_shapes[0], dtype=np.float32)
        for entry in entries("unet", network)
    }
    save_file(tensors, folder / "diffusion_pytorch_model.safetensors")


def resident() -> float:
    """MiB of this process's own, without the pages of files."""
    status = Path("/proc/self/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


class Peak:
    """The most that was resident, looked at every few milliseconds."""

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
    """In a process of its own: load, and print what it took."""
    import jax

    from imagefleet.worker.engine.build import abstract
    from imagefleet.worker.engine.checkpoint.files import TensorFiles
    from imagefleet.worker.engine.checkpoint.weights import WeightMapping
    from imagefleet.worker.engine.mesh import Placement, start_backend
    from imagefleet.worker.engine.mesh_spec import MeshSpec
    from imagefleet.worker.engine.models.unet import UNet
    from imagefleet.worker.engine.models.unet_config import UNetConfig

    layout = MeshSpec.read(mesh, None)
    start_backend(layout.devices)
    placement = Placement.of(layout.devices, layout.model)
    plan = WeightMapping("unet", abstract(UNet, UNetConfig.from_json(CONFIG)), TensorFiles(folder))
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
    given = parser.parse_args()
    if given.row:
        load(Path(given.row[0]), given.row[1])
        return
    rows: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / MIB
        for mesh in MESHES:
            child = subprocess.run(
                [sys.executable, __file__, "--row", folder, mesh],
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

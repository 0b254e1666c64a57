"""Compare the engine with PyTorch on the published UNets, at full size and with random weights.

    .venv/bin/python -m tools.parity.full --pytorch .venv-parity/bin/python [sd14 sd21 sdxl]

PyTorch and the engine run one after the other, each in its own process, because SDXL's weights take
10 GB in float32. The output is a table and one line of JSON. The command fails if a parameter is
missing or the largest relative error is above 1e-4.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from tools.parity.published import PUBLISHED

PARAMETERS = {"sd14": 859_520_964, "sd21": 865_910_724, "sdxl": 2_567_463_684}
MAX_RELATIVE_ERROR = 1e-4


def compare(model: str, pytorch: str, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        theirs = _run(pytorch, "tools.parity.full_torch", model, folder, str(size))
        ours = _run(sys.executable, "tools.parity.full_engine", folder)
    assert theirs["parameters"] == ours["parameters"] == PARAMETERS[model]
    return ours | {"torch_s": theirs["seconds"], "torch_peak_bytes": theirs["peak_bytes"]}


def _run(python: str, module: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [python, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(PUBLISHED))
    parser.add_argument("--pytorch", required=True, help="a Python with torch and diffusers")
    parser.add_argument("--size", type=int, default=32, help="side of the latents")
    options = parser.parse_args(arguments)
    rows = {}
    print(
        f"{'UNet':>6} {'parameters':>14} {'max |d|':>9} {'mean |d|':>9} {'relative':>9} "
        f"{'engine s':>9} {'torch s':>9} {'engine GB':>10} {'torch GB':>9}"
    )
    for model in options.models:
        row = rows[model] = compare(model, options.pytorch, options.size)
        print(
            f"{model:>6} {row['parameters']:>14,} {row['max_difference']:>9.1e} "
            f"{row['mean_difference']:>9.1e} {row['relative']:>9.1e} {row['seconds']:>9.1f} "
            f"{row['torch_s']:>9.1f} {row['peak_bytes'] / 1e9:>10.1f} "
            f"{row['torch_peak_bytes'] / 1e9:>9.1f}",
            flush=True,
        )
    print(json.dumps({"latents": options.size, "unets": rows}))
    return int(any(row["relative"] > MAX_RELATIVE_ERROR for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Make images of drawn jobs for well-known structures, and compare them with those of diffusers.

`make parity-pictures`, or with PICTURES="--jobs 32 --seed 3 --only SSD-1B", or PICTURES="--mesh
data=1,model=2" for devices that share weights. Each checkpoint is tiny and has the structure of the
published one. Its jobs name schedulers, LoRA, the token of a textual inversion, seeds, images above
the first, masks and images; they are made in whole batches and again by a stream. It ends with a
table and one line of JSON, and with exit code 1 if an image is more than one level from that of
diffusers.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.parity.known.checkpoints import KNOWN
from tools.parity.pictures.draw import (
    CHECKPOINTS,
    as_json,
    draw_jobs,
    draw_side,
    write_inversion,
    write_loras,
)
from tools.parity.truth_process import TruthProcess

TRUTH: Final = "tools.parity.pictures.truth"
MAX_LEVELS: Final = 1
"""Levels of 255 by which equal images may differ, from rounding."""


@dataclass(kw_only=True)
class Result:
    """What became of the jobs of one checkpoint."""

    name: str
    side: tuple[int, int]
    levels: list[int] = field(default_factory=list)
    """By job: the largest difference from diffusers' image, in whole batches and in streams."""
    refused: int = 0
    """Jobs that diffusers refuses."""
    failures: list[str] = field(default_factory=list)


def compare(name: str, truth: TruthProcess, options: argparse.Namespace, place: Path) -> Result:
    """Make the jobs of one checkpoint on both sides."""
    from tools.parity.pictures import engine

    folder, files = place / "checkpoint", place / "files"
    files.mkdir(parents=True)
    side = draw_side(name, options.seed)
    places = {"name": name, "folder": str(folder), "files": str(files)}
    truth.ask({**places, "write": True})
    shapes = truth.answer()["shapes"]
    write_loras(files, {key: tuple(shape) for key, shape in shapes.items()}, options.seed)
    is_xl = "text_encoder_2" in KNOWN[name].text_encoders
    write_inversion(files, is_xl=is_xl, seed=options.seed)

    load = partial(engine.load, folder, files, side, options.cache, mesh=options.mesh)
    loaded = load(streams=False)
    info = loaded.info
    jobs = [engine.offered(job, info) for job in draw_jobs(name, options.seed, options.jobs)]
    for number, job in enumerate(jobs):
        noise = engine.noise_of(job, (side[0] // 8, side[1] // 8))
        np.savez(files / f"noise-{number}.npz", **noise)  # type: ignore[arg-type]
    specs = [engine.spec_of(job, info, side) for job in jobs]
    made = {"batch": engine.batch_images(loaded, specs)}
    if not options.no_streams:
        made["stream"] = engine.stream_images(load(streams=True), specs)
    truth.ask({**places, "side": side, "jobs": as_json(jobs)})
    answer = truth.answer()
    return _judge(Result(name=name, side=side), made, answer, as_json(jobs))


def _judge(
    result: Result,
    made: dict[str, NDArray[np.uint8]],
    answer: dict[str, Any],
    jobs: list[dict[str, Any]],
) -> Result:
    theirs = np.load(answer["images"])
    for number, job in enumerate(jobs):
        if (error := answer["errors"].get(str(number))) is not None:
            result.refused += 1
            print(f"  diffusers refuses {job}: {error}", flush=True)
            continue
        expected = theirs[str(number)].astype(int)
        levels = {how: int(np.abs(each[number] - expected).max()) for how, each in made.items()}
        result.levels.append(max(levels.values()))
        if max(levels.values()) > MAX_LEVELS:
            result.failures.append(f"job {number}, {levels}: {job}")
            print(f"  {result.failures[-1]}", flush=True)
    return result


def _compare_and_tell(
    name: str, truth: TruthProcess, options: argparse.Namespace, folder: Path
) -> Result:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        result = compare(name, truth, options, Path(place))
    height, width = result.side
    print(
        f"{name:48} {height:3}x{width:<3} {len(result.levels):3} images, at most "
        f"{max(result.levels, default=0)} level, {sum(not each for each in result.levels)} "
        f"equal, {result.refused} refused, {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pytorch", required=True, help="the python of `make parity`")
    parser.add_argument("--jobs", type=int, default=16, help="of each checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a part of the names of checkpoints")
    parser.add_argument("--mesh", default="data=1", help="of our side: data=1,model=2")
    parser.add_argument("--no-streams", action="store_true", help="make whole batches only")
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs, to keep")
    options = parser.parse_args()
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    results = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        options.cache = options.cache or folder / "cache"
        with TruthProcess.running(options.pytorch, TRUTH, folder / "truth.log") as truth:
            for name in (each for each in CHECKPOINTS if (options.only or "") in each):
                results.append(_compare_and_tell(name, truth, options, folder))
    numbers = {
        "checkpoints": len(results),
        "images": sum(len(each.levels) for each in results),
        "more than one level apart": sum(len(each.failures) for each in results),
        "refused by diffusers": sum(each.refused for each in results),
        "seed": options.seed,
        "mesh": options.mesh,
    }
    print(json.dumps(numbers))
    return bool(numbers["more than one level apart"])


if __name__ == "__main__":
    sys.exit(main())

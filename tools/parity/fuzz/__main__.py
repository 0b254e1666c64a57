"""Draw checkpoints, ask diffusers and then our engine, and count how they compare.

`make parity-fuzz FUZZ="--count 2000 --seed 1"`, `FUZZ=--z-image` for Z-Image, `FUZZ=--klein` for
FLUX.2 klein, `FUZZ=--flux1` for FLUX.1 and `FUZZ=--sd3` for Stable Diffusion 3,
`--cases 17,z205,k9,f3,s8` to repeat single ones, or `--mesh data=1,model=2` for devices that share
weights. It ends with one line of JSON, and with exit code 1 if anything was silently different or
crashed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tools.parity.fuzz.draft import FIXTURES
from tools.parity.fuzz.draw import FLUX1, FLUX2_KLEIN, STABLE_DIFFUSION_3, Z_IMAGE, draw
from tools.parity.fuzz.ledger import FAILURES, Entry, Ledger, Outcome
from tools.parity.fuzz.named_cases import NAMED_CASES
from tools.parity.fuzz.sides import ONE_DEVICE, TRUTH, run
from tools.parity.truth_process import TruthProcess

STORED_DRAWS = 40
"""Drawn checkpoints whose truths are stored for `make test`."""


def store(answers: dict[str, Outcome]) -> None:
    """Write the truths of `make test`: the images of diffusers, or its error."""
    from safetensors.numpy import save_file

    images = {case: each.images for case, each in answers.items() if each.images is not None}
    save_file(images, FIXTURES / "fuzz.safetensors")
    errors = {case: each.error for case, each in answers.items() if each.images is None}
    text = json.dumps(errors, indent=1, ensure_ascii=False)
    (FIXTURES / "fuzz_errors.json").write_text(text + "\n", encoding="utf-8")


def stored_cases() -> list[str]:
    """Return the cases of `make test`. Their weights need no torch."""
    drawn: list[str] = []
    seed = 0
    with tempfile.TemporaryDirectory() as name:
        while len(drawn) < STORED_DRAWS:
            if draw(Path(name) / str(seed), str(seed)).network is None:
                drawn.append(str(seed))
            seed += 1
    return [*NAMED_CASES, *drawn]


def cases_of(options: argparse.Namespace) -> list[str]:
    """Return the cases that the command line asks for."""
    if options.store:
        return stored_cases()
    if options.cases:
        return str(options.cases).split(",")
    return [f"{options.family}{seed}" for seed in range(options.seed, options.seed + options.count)]


def report(entry: Entry, ledger: Ledger, begun: float, verbose: bool) -> None:
    """Print a failure at once, and the progress now and then."""
    if entry.verdict in FAILURES:
        print(entry.describe(), flush=True)
    elif verbose:
        print(f"{entry.case}: {entry.verdict} ({entry.levels:g}) {entry.ours[:200]}", flush=True)
    if (done := len(ledger.entries)) % 50 == 0:
        print(f"{done} checkpoints after {time.monotonic() - begun:.0f} s", flush=True)


def compare_all(options: argparse.Namespace) -> Ledger:
    """Compare every case; with `--store`, write the truths."""
    ledger, begun = Ledger(), time.monotonic()
    answers: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with TruthProcess.running(options.pytorch, TRUTH, folder / "truth.log") as truth:
            cache_dir = options.cache or folder / "cache"
            for entry, theirs in run(cases_of(options), truth, folder, cache_dir, options.mesh):
                ledger.entries.append(entry)
                answers[entry.case] = theirs
                report(entry, ledger, begun, options.verbose)
    if options.store:
        store(answers)
    return ledger


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pytorch", required=True, help="the python of `make parity`")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first of `count` seeds")
    for flag, family, name in (
        ("--z-image", Z_IMAGE, "Z-Image"),
        ("--klein", FLUX2_KLEIN, "FLUX.2 klein"),
        ("--flux1", FLUX1, "FLUX.1"),
        ("--sd3", STABLE_DIFFUSION_3, "Stable Diffusion 3"),
    ):
        about = f"draw checkpoints of {name}"
        parser.add_argument(flag, action="store_const", const=family, dest="family", help=about)
    parser.set_defaults(family="")
    parser.add_argument("--mesh", default=ONE_DEVICE, help="of our side: data=1,model=2")
    parser.add_argument("--cases", help="seeds or names, separated by commas")
    parser.add_argument("--store", action="store_true", help="write the truths of `make test`")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    parser.add_argument("--cache", type=Path, help="a folder for compiled programs, to keep")
    options = parser.parse_args()
    # Most networks are new, and run for a few steps of tiny images: compiling costs the time.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    ledger = compare_all(options)
    print(ledger.table())
    print(json.dumps({**ledger.numbers(), "first_seed": options.seed, "mesh": options.mesh}))
    return bool(ledger.failures)


if __name__ == "__main__":
    sys.exit(main())

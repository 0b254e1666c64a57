"""Writes tests/fixtures/parity: tiny checkpoints and what PyTorch diffusers makes of them.

    python -m venv torchenv && torchenv/bin/pip install torch diffusers transformers safetensors
    torchenv/bin/python -m tools.make_parity_fixtures tests/fixtures/parity [part…]

Goes in: nothing but seeds. Comes out: whole checkpoints (`older`, spelt like files of 2022,
`newer`, like today's, and `xl`) and a checker (`safety`), each with `expected.safetensors`;
`samplers.safetensors`; and the names and shapes of published models. The tests that read them need
no torch. Made with torch 2.13.0, diffusers 0.42.1 and transformers 5.23.0.
"""

import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import save_file

from tools.parity.answers import expected
from tools.parity.checkpoints import (
    ddim_config,
    newer_unet,
    older_unet,
    pndm_config,
    spell_like_2022,
    spell_like_today,
    write_checkpoint,
)
from tools.parity.edits import edits
from tools.parity.full_size import full_size
from tools.parity.safety import write_safety
from tools.parity.samplers import sampler_runs
from tools.parity.xl import expected_of_xl, write_xl

END = "<|endoftext|>"


def older(target: Path) -> None:
    pipeline = write_checkpoint(target, older_unet(), "quick_gelu", pndm_config(), END, 1)
    spell_like_2022(target)
    save_file(expected(pipeline), target / "expected.safetensors")


def newer(target: Path) -> None:
    pipeline = write_checkpoint(target, newer_unet(), "gelu", ddim_config(), "!", 2)
    spell_like_today(target)
    save_file(expected(pipeline), target / "expected.safetensors")


def xl(target: Path) -> None:
    save_file(expected_of_xl(write_xl(target)), target / "expected.safetensors")


def safety(target: Path) -> None:
    save_file(write_safety(target), target / "expected.safetensors")


def originals(target: Path) -> None:
    found = {name: edits(target.parent / name) for name in ("older", "newer", "xl")}
    save_file(
        {f"{name}|{key}": x for name, each in found.items() for key, x in each.items()}, target
    )


def samplers(target: Path) -> None:
    save_file(sampler_runs(), target)


def published(target: Path) -> None:
    target.write_text(json.dumps(full_size(), indent=1) + "\n", encoding="utf-8")


PARTS = {
    "older": older,
    "newer": newer,
    "xl": xl,
    "safety": safety,
    "edits.safetensors": originals,
    "samplers.safetensors": samplers,
    "full_size.json": published,
}


def main(target: Path, parts: list[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in parts or PARTS:
        if (target / name).is_dir():
            shutil.rmtree(target / name)
        PARTS[name](target / name)
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

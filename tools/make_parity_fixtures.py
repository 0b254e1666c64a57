"""Writes tests/fixtures/parity: tiny checkpoints and what PyTorch diffusers makes of them.

    python -m venv torchenv && torchenv/bin/pip install torch diffusers transformers safetensors
    torchenv/bin/python -m tools.make_parity_fixtures tests/fixtures/parity

Goes in: nothing but seeds. Comes out: two whole checkpoints (`older`, spelt like files of 2022, and
`newer`, like today's), each with `expected.safetensors`; `samplers.safetensors`; and the names and
shapes of Stable Diffusion 1.4. The tests that read them need no torch. Made with torch 2.13.0,
diffusers 0.42.1 and transformers 5.23.0.
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
from tools.parity.full_size import full_size
from tools.parity.samplers import sampler_runs


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    older = write_checkpoint(target / "older", older_unet(), "quick_gelu", pndm_config(), 1)
    spell_like_2022(target / "older")
    newer = write_checkpoint(target / "newer", newer_unet(), "gelu", ddim_config(), 2)
    spell_like_today(target / "newer")
    for folder, pipeline in ((target / "older", older), (target / "newer", newer)):
        save_file(expected(pipeline), folder / "expected.safetensors")
    save_file(sampler_runs(), target / "samplers.safetensors")
    (target / "sd14.json").write_text(json.dumps(full_size(), indent=1) + "\n", encoding="utf-8")
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""`python -m tests.fuzz.read_weights`: read files of LoRA and textual inversions, as a worker does.

Input: lines of JSON, each a setting, a model and a path. Output: for each a line that says how it
ended, the sentence of the refusal, and the MB of memory that reading it took. There is no worker.
"""

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from imagefleet.shared.errors import ImagefleetError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.job_loras import JobLoraFactors
from imagefleet.worker.engine.checkpoint.lora import MergedTensors, Shapes, read_loras
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.checkpoint.weights import WeightMapping, weight_entries
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.families.stable_diffusion.lora_names import LORA_NAMES
from imagefleet.worker.engine.families.stable_diffusion.textual_inversion import (
    read_textual_inversions,
)
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from tests.unit.engine.parity import FOLDER, read_model

_OWN_PROCESS: Final = Path("/proc/self")


class _Model:
    """The weights and configs of a small checkpoint, which the files may fit."""

    def __init__(self, name: str) -> None:
        files = CheckpointFiles(FOLDER / name)
        networks = read_model(files).networks()
        self._opened: Mapping[str, TensorFiles] = files.open_weights(tuple(networks))
        self._configs = Configs.read(files)
        self._entries = {name: weight_entries(each) for name, each in networks.items()}
        self._shapes: Shapes = {
            name: WeightMapping(name, network, self._opened[name]).shapes
            for name, network in networks.items()
            if name in LORA_NAMES.networks
        }

    def readers(self) -> dict[str, Callable[[str], object]]:
        """Return what reads a file, by the setting that names it."""
        return {
            "lora": self._merge,
            "job_lora": self._stack,
            "textual_inversion": self._invert,
        }

    def _merge(self, path: str) -> None:
        option = LoraOption(name="drawn", path=path, scale=0.8)
        for network, by_key in read_loras([option], self._shapes, LORA_NAMES).items():
            stored = {self._stored(network, key): each for key, each in by_key.items()}
            merged = MergedTensors(self._opened[network], stored)
            for name in stored:
                merged.read_slice(name, tuple(slice(None) for _ in merged.shapes[name]))

    def _stored(self, network: str, key: str) -> str:
        return key if key in self._opened[network].shapes else f"text_model.{key}"

    def _stack(self, path: str) -> None:
        factors = JobLoraFactors([LoraOption(name="drawn", path=path)], self._shapes, LORA_NAMES)
        for network in self._shapes:
            params: dict[str | int, Any] = {}
            for entry in self._entries[network]:
                place = params
                for name in entry.path[:-1]:
                    place = place.setdefault(name, {})
            factors.add_to(network, params, self._entries[network], lambda stacked: stacked)

    def _invert(self, path: str) -> None:
        read_textual_inversions([TextualInversionOption(name="<a>", path=path)], self._configs)


def _memory_mb(field: str) -> float:
    for line in (_OWN_PROCESS / "status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1000
    return 0.0


def _outcome(read: Callable[[], object]) -> tuple[str, str]:
    try:
        read()
    except ImagefleetError as error:
        return f"refused: {error.code}", str(error)
    except Exception:
        return "error", traceback.format_exc(limit=-2)
    return "accepted", ""


def main() -> None:
    """Answer each line of the standard input until it ends."""
    warnings.simplefilter("error")
    readers = {name: _Model(name).readers() for name in ("older", "xl")}
    for line in sys.stdin:
        question = json.loads(line)
        before = _memory_mb("VmRSS")
        (_OWN_PROCESS / "clear_refs").write_text("5")  # forget the peak
        read = readers[question["model"]][question["setting"]]
        outcome, sentence = _outcome(partial(read, question["path"]))
        peak_mb = _memory_mb("VmHWM") - before
        answer = {"outcome": outcome, "sentence": sentence, "peak_mb": peak_mb}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

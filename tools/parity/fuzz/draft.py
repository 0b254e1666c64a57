"""A checkpoint that is being drawn, and the images that are asked of it.

It starts as a copy of a small checkpoint and is changed file by file. This module needs neither
torch nor JAX.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

FIXTURES: Final = Path(__file__).parents[3] / "tests" / "fixtures" / "parity"
BASES: Final = ("older", "newer", "xl")
"""The checkpoints to start from: Stable Diffusion 1 and 2, and SDXL."""
SIZE: Final = 8
"""Side of the latents. Images are 32x32."""
REMOVED: Final = object()
"""The value of a field that `Draft.edit` removes."""
INDEX: Final = "model_index.json"
SCHEDULER: Final = "scheduler/scheduler_config.json"
UNET: Final = "unet/diffusion_pytorch_model.safetensors"
VAE: Final = "vae/diffusion_pytorch_model.safetensors"
TEXT: Final = "text_encoder/model.safetensors"
Tensors = dict[str, NDArray[Any]]


@dataclass(kw_only=True)
class Job:
    """The images that diffusers and the engine are asked for: one or two, without a seed."""

    prompts: list[str] = field(default_factory=lambda: ["a red circle on blue", "Zwölf  Bücher!"])
    negative_prompts: list[str] | None = None
    """None: the negative prompt is not given."""
    scheduler: str | None = None
    """The name of one of our schedulers. None: that of the checkpoint."""
    steps: int = 3
    guidance: float = 3.0
    guidance_rescale: float = 0.0
    clip_skip: int | None = None
    cfg_normalization: float = 0.0
    cfg_truncation: float = 1.0
    true_cfg_scale: float = 1.0
    strength: float | None = None
    """None: the images start from noise alone, and not from `known.write.init_image`."""
    is_masked: bool = False
    """Whether only the part in `known.write.inpaint_mask` is generated anew."""
    side: int | None = 4 * SIZE
    """Height and width in pixels. None: the model's native size."""


@dataclass(kw_only=True)
class Draft:
    """A checkpoint that is being drawn."""

    folder: Path
    base: str
    random: Random
    job: Job = field(default_factory=Job)
    changes: list[str] = field(default_factory=list)
    """What was changed, in a few words each."""
    network: str | None = None
    """A network whose config was changed so much that diffusers has to draw its weights anew."""
    loras: list[tuple[str, float]] = field(default_factory=list)
    """Files in the folder that are merged, and their scales."""
    single_file: Path | None = None
    """The file of all weights, which lies beside the folder of their configs."""

    @classmethod
    def copy(cls, folder: Path, base: str, random: Random) -> "Draft":
        """Start with a copy of the checkpoint `base` in `folder`, which must not exist."""
        ignored = shutil.ignore_patterns("expected.safetensors")
        shutil.copytree(FIXTURES / base, folder, ignore=ignored)
        return cls(folder=folder, base=base, random=random)

    @property
    def is_xl(self) -> bool:
        return self.base == "xl"

    @property
    def text_encoders(self) -> list[str]:
        return ["text_encoder", "text_encoder_2"] if self.is_xl else ["text_encoder"]

    @property
    def tokenizers(self) -> list[str]:
        return ["tokenizer", "tokenizer_2"] if self.is_xl else ["tokenizer"]

    def note(self, change: str) -> None:
        """Record a change in words."""
        self.changes.append(change)

    def read(self, file: str) -> Any:
        """Return the JSON of a file; an empty object if there is none."""
        path = self.folder / file
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def write(self, file: str, content: object) -> None:
        """Write a JSON file."""
        (self.folder / file).write_text(json.dumps(content, indent=1), encoding="utf-8")

    def edit(self, file: str, **fields: object) -> None:
        """Set or remove fields of a JSON file, and record that."""
        content = self.read(file)
        for name, value in fields.items():
            if value is REMOVED:
                content.pop(name, None)
                self.note(f"{file}: {name} removed")
            else:
                content[name] = value
                self.note(f"{file}: {name}={str(json.dumps(value))[:60]}")
        self.write(file, content)

    def read_tensors(self, file: str) -> Tensors:
        """Return the tensors of a weight file."""
        # It gives numpy the dtype bfloat16. Diffusers' environment, which imports this module for
        # the noise, does not have it.
        import ml_dtypes  # noqa: F401

        return load_file(self.folder / file)

    def tensors(self, file: str, change: Callable[[Tensors], None]) -> None:
        """Change the tensors of a weight file."""
        tensors = self.read_tensors(file)
        change(tensors)
        save_file(tensors, self.folder / file)

    def keys(self, file: str) -> list[str]:
        """Return the keys of a weight file, sorted."""
        with safe_open(self.folder / file, framework="numpy") as tensors:
            return sorted(tensors.keys())

    def describe(self) -> dict[str, Any]:
        """Return all but the files, as JSON."""
        return {
            "folder": str(self.folder),
            "base": self.base,
            "changes": self.changes,
            "network": self.network,
            "loras": self.loras,
            "single_file": self.single_file and str(self.single_file),
            "job": asdict(self.job),
        }


def noise(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the noise that both sides use, at the start and in each step.

    numpy has promised that the numbers of `RandomState` stay the same in all its releases.
    """
    return np.random.RandomState(5).standard_normal(shape).astype(np.float32)

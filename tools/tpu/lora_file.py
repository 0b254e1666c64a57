"""Write a LoRA file for every attention layer of a model's UNet, with zeros as weights.

Input: configs and a rank. Output: a file in PEFT's format. It shows what LoRA of jobs cost in
programs that need no weights.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.families.family_protocol import FamilyModel

RANK: Final = 16
_LAYERS: Final = (".to_q", ".to_k", ".to_v", ".to_out.0")
"""Those that diffusers' training script of LoRA adds to."""


def write_lora(path: Path, model: FamilyModel) -> None:
    """Write a file of rank `RANK`."""
    save_file(_tensors(model), path)


def count_numbers(model: FamilyModel) -> int:
    """Return how many numbers the file has."""
    return sum(tensor.size for tensor in _tensors(model).values())


def _tensors(model: FamilyModel) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {}
    for entry in weight_entries(model.networks()["unet"]):
        layer = entry.key.removesuffix(".weight")
        if layer.endswith(_LAYERS):
            out, into = entry.stored_shapes[0]
            tensors[f"unet.{layer}.lora_A.weight"] = np.zeros((RANK, into), np.float16)
            tensors[f"unet.{layer}.lora_B.weight"] = np.zeros((out, RANK), np.float16)
    return tensors

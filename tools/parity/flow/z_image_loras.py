"""Write LoRA files for the tiny Z-Image, in the formats that diffusers reads, on both sides."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tools.parity.flow.z_image_case import Variant

RANK: Final = 3
_FIRST: Final = (
    "layers.0.attention.to_q",
    "layers.0.attention.to_out.0",
    "layers.1.feed_forward.w2",
    "noise_refiner.0.attention.to_v",
    "context_refiner.1.feed_forward.w1",
)
_FURTHER: Final = (
    "layers.0.adaLN_modulation.0",
    "layers.1.attention.to_k",
    "context_refiner.0.attention.to_out.0",
    "noise_refiner.1.feed_forward.w3",
    "all_x_embedder.2-1",
    "all_final_layer.2-1.linear",
    "all_final_layer.2-1.adaLN_modulation.1",
    "cap_embedder.1",
    "t_embedder.mlp.0",
    "t_embedder.mlp.2",
)
LAYERS: Final[Mapping[str, tuple[str, ...]]] = {
    "diffusers": _FIRST,
    "ai_toolkit": _FURTHER,
    "kohya": (*_FIRST[:2], *_FURTHER),
}
"""By file: the layers that it changes. The second of kohya's has the name of the original
program."""
CASES: Final[Mapping[str, Mapping[str, float]]] = {
    "diffusers": {"diffusers": 1.0},
    "ai_toolkit": {"ai_toolkit": -0.7},
    "kohya": {"kohya": 0.8},
    "two": {"kohya": 0.5, "diffusers": -1.0},
}
"""By name: the files of an image with their scales."""
_FACTORS: Final = {
    "lora_A": ("lora_A.weight", "lora_B.weight"),
    "lora_A.default": ("lora_A.default.weight", "lora_B.default.weight"),
    "lora_down": ("lora_down.weight", "lora_up.weight"),
    "lora.down": ("lora.down.weight", "lora.up.weight"),
}
_ALPHA: Final = 2.0


@dataclass(frozen=True)
class LoraFormat:
    """It says how a file of one layer of attention names it and its factors. diffusers reads some
    of these files."""

    prefix: str
    factors: str
    has_alpha: bool
    layer: str

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the content of the file."""
        layer = f"layers.0.attention.{self.layer}"
        key = self.prefix + (layer.replace(".", "_") if self.prefix.endswith("_") else layer)
        width = layer_shape(layer)[1]
        outputs = len(self.weights) * width
        names = (f"{key}.{name}" for name in _FACTORS[self.factors])
        values = _draw("down", (RANK, width)), _draw("up", (outputs, RANK))
        tensors = dict(zip(names, values, strict=True))
        return tensors | ({f"{key}.alpha": np.array(_ALPHA, np.float32)} if self.has_alpha else {})

    @property
    def weights(self) -> tuple[str, ...]:
        """Return the layers of diffusers that it changes."""
        names = {"qkv": ("to_q", "to_k", "to_v"), "out": ("to_out.0",)}.get(self.layer, ("to_q",))
        return tuple(f"layers.0.attention.{name}" for name in names)

    @property
    def changes(self) -> list[NDArray[np.float32]]:
        """Return what is added to each of these layers."""
        down, up, *_ = self.tensors.values()
        scale = _ALPHA / RANK if self.has_alpha else 1.0
        return [scale * (part @ down) for part in np.split(up, len(self.weights))]


FORMATS: Final = [
    LoraFormat(*each)
    for each in product(
        (
            "transformer.",
            "diffusion_model.",
            "",
            "lora_unet_",
            "base_model.model.",
            "lora_transformer_",
        ),
        _FACTORS,
        (False, True),
        ("to_q", "out", "qkv"),
    )
]


def write_loras(folder: Path) -> None:
    """Write the files, `<name>.safetensors`."""
    for name, layers in LAYERS.items():
        tensors: dict[str, NDArray[np.float32]] = {}
        for layer in layers:
            key, down, up = _keys(name, layer)
            out, width = layer_shape(layer)
            tensors[f"{key}.{down}.weight"] = _draw(f"{name} {layer} down", (RANK, width))
            tensors[f"{key}.{up}.weight"] = _draw(f"{name} {layer} up", (out, RANK))
            if name == "kohya":
                tensors[f"{key}.alpha"] = np.array(2.0 + len(layer) % 3, np.float32)
        save_file(tensors, folder / f"{name}.safetensors")


def _keys(name: str, layer: str) -> tuple[str, str, str]:
    """Return the name of a layer in a file, and those of its two factors."""
    if name == "kohya":
        layer = layer.replace("layers.0.attention.to_out.0", "layers.0.attention.out")
        return f"lora_unet_{layer.replace('.', '_')}", "lora_down", "lora_up"
    prefix = "transformer" if name == "diffusers" else "diffusion_model"
    return f"{prefix}.{layer}", "lora_A", "lora_B"


def _draw(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return (0.25 * values).astype(np.float32)


def layer_shape(layer: str) -> tuple[int, int]:
    """Return the outputs and the inputs of a layer."""
    config: Any = Variant().configs["transformer"]
    dim, patch = config["dim"], 4 * config["in_channels"]
    inner = int(dim / 3 * 8)
    shapes = {
        "w1": (inner, dim),
        "w2": (dim, inner),
        "w3": (inner, dim),
        "all_x_embedder.2-1": (dim, patch),
        "all_final_layer.2-1.linear": (patch, dim),
        "all_final_layer.2-1.adaLN_modulation.1": (dim, dim),
        "adaLN_modulation.0": (4 * dim, dim),
        "cap_embedder.1": (dim, config["cap_feat_dim"]),
        "t_embedder.mlp.0": (1024, 256),
        "t_embedder.mlp.2": (dim, 1024),
    }
    return next((shape for end, shape in shapes.items() if layer.endswith(end)), (dim, dim))

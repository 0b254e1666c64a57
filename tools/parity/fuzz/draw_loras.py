"""Draw LoRA files of the UNet, in the formats of kohya, PEFT and diffusers.

They have no layers of text encoders, which diffusers 0.42 leaves out with transformers 5.23.
"""

import json
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import UNET_PREFIX, origins
from tools.parity.fuzz.draft import UNET, Draft, Tensors

DROPPED: Final = ("add_embedding.linear_1", "add_embedding.linear_2")
"""Layers that diffusers drops from a file with kohya's names, as docs/models.md says."""
_ATTENTION: Final = {"to_q": "to_q", "to_k": "to_k", "to_v": "to_v", "to_out.0": "to_out"}


def change_loras(draft: Draft) -> None:
    """Merge one LoRA file, or two."""
    for _ in range(draft.random.choice([1, 1, 2])):
        kind = draft.random.choice(sorted(_FORMATS))
        scale = draft.random.choice([1.0, 0.6, -0.5])
        file = draft.folder / f"lora-{len(draft.loras)}.safetensors"
        draft.note(f"a LoRA of {kind} with scale {scale}")
        tensors, header = _FORMATS[kind](draft)
        save_file(tensors, file, header)
        draft.loras.append((file.name, scale))


def _weights(draft: Draft) -> dict[str, NDArray[Any]]:
    """Return the matrices and kernels of the UNet, by layer."""
    return {
        key.removesuffix(".weight"): weight
        for key, weight in sorted(draft.read_tensors(UNET).items())
        if weight.ndim > 1
    }


def _draw_layers(draft: Draft, layers: list[str]) -> list[str]:
    return draft.random.sample(layers, draft.random.choice([1, 2, 4, 8]))


def _factors(draft: Draft, weight: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw factors that change a weight visibly."""
    rank = draft.random.choice([2, 2, 2, 3])
    numbers = np.random.RandomState(draft.random.randrange(1 << 16))
    down = numbers.standard_normal((rank, *weight.shape[1:])) / np.sqrt(weight[0].size)
    up = numbers.standard_normal((weight.shape[0], rank, *[1] * (weight.ndim - 2))) / 3
    return down.astype(np.float32), up.astype(np.float32)


def _kohya(draft: Draft) -> tuple[Tensors, dict[str, str]]:
    weights = {key: each for key, each in _weights(draft).items() if key not in DROPPED}
    return _of_kohya(draft, {layer: layer for layer in weights})


def _kohya_original(draft: Draft) -> tuple[Tensors, dict[str, str]]:
    """Name layers as the original format does; diffusers reads these names of SDXL only."""
    if not draft.is_xl:
        return _kohya(draft)
    keys = [f"{layer}.weight" for layer in _weights(draft)]
    places = origins("unet", draft.keys(UNET), ())
    return _of_kohya(
        draft,
        {
            key.removesuffix(".weight"): places[key].key.removeprefix(UNET_PREFIX)[
                : -len(".weight")
            ]
            for key in keys
        },
    )


def _of_kohya(draft: Draft, names: dict[str, str]) -> tuple[Tensors, dict[str, str]]:
    """Return a file of layers with these names. Different alphas would differ on purpose."""
    alpha = draft.random.choice([None, 1.0, 4.0])
    shape = draft.random.choice([(), (), (1,), (3,)])
    tensors: Tensors = {}
    weights = _weights(draft)
    for layer in _draw_layers(draft, list(names)):
        name = f"lora_unet_{names[layer].replace('.', '_')}"
        down, up = _factors(draft, weights[layer])
        tensors |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up}
        if alpha is not None:
            tensors[f"{name}.alpha"] = np.full(shape, alpha, np.float16)
    return tensors, {}


def _peft(draft: Draft) -> tuple[Tensors, dict[str, str]]:
    weights, tensors, ranks = _weights(draft), Tensors(), {}
    for layer in _draw_layers(draft, list(weights)):
        down, up = _factors(draft, weights[layer])
        ranks[layer] = len(down)
        tensors |= {f"unet.{layer}.lora_A.weight": down, f"unet.{layer}.lora_B.weight": up}
    return tensors, _header(draft, ranks)


def _header(draft: Draft, ranks: dict[str, int]) -> dict[str, str]:
    """Draw the settings of PEFT: none, plain ones, patterns, or damaged ones."""
    settings: dict[str, Any] = {
        "unet.r": 2,
        "unet.rank_pattern": {f"^{layer}": rank for layer, rank in ranks.items() if rank != 2},
        "unet.target_modules": list(ranks),
    }
    kind = draft.random.choice(["none", "plain", "no alpha", "patterns", "damaged", "rsLoRA"])
    draft.note(f"settings of PEFT: {kind}")
    if kind in ("plain", "patterns"):
        settings["unet.lora_alpha"] = draft.random.choice([2, 5])
    if kind == "patterns":
        leaves = sorted({layer.rpartition(".")[2] for layer in ranks})
        patterns = [*leaves, *ranks, r"attn[12]\.to_[qk]", "o_q", f"^{min(ranks)}"]
        chosen = draft.random.sample(patterns, 2)
        settings["unet.alpha_pattern"] = {each: draft.random.choice([1, 6]) for each in chosen}
    if kind == "rsLoRA":
        settings["unet.use_rslora"] = True
    text = draft.random.choice(["{", "[1]"]) if kind == "damaged" else json.dumps(settings)
    return {} if kind == "none" else {"lora_adapter_metadata": text}


def _processors(draft: Draft) -> tuple[Tensors, dict[str, str]]:
    """Name the layers of attention as diffusers once did."""
    weights, tensors = _weights(draft), Tensors()
    layers = [layer for layer in weights if ".attn" in layer]
    for layer in _draw_layers(draft, layers):
        parent, leaf = next(
            (layer.removesuffix(f".{leaf}"), leaf)
            for leaf in _ATTENTION
            if layer.endswith(f".{leaf}")
        )
        down, up = _factors(draft, weights[layer])
        name = f"unet.{parent}.processor.{_ATTENTION[leaf]}_lora"
        tensors |= {f"{name}.down.weight": down, f"{name}.up.weight": up}
    return tensors, {}


_FORMATS: Final = {
    "kohya": _kohya,
    "kohya with original names": _kohya_original,
    "PEFT": _peft,
    "diffusers' processors": _processors,
}

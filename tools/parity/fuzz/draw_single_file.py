"""Draw checkpoints in one file of the original format, and keys that say how it was trained.

The text encoders also stay in their folders: with transformers 5.23, diffusers 0.42 finds none in a
file.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from safetensors.numpy import save_file

from imagefleet.worker.engine.checkpoint.single_file import Origin
from imagefleet.worker.engine.families.stable_diffusion.single_file_keys import (
    CLIP_PREFIXES,
    OPEN_CLIP_PREFIXES,
    origins,
)
from tools.parity.fuzz.draft import INDEX, SCHEDULER, Draft, Tensors

PREFIXES: Final = {
    "older": (CLIP_PREFIXES["text_encoder"][0],),
    "xl": (CLIP_PREFIXES["text_encoder"][1], OPEN_CLIP_PREFIXES["text_encoder_2"][0]),
}
"""By checkpoint: the prefixes of its text encoders in the file. diffusers reads no such file of
`newer`, whose levels have different numbers of layers."""
_OLD_ATTENTION: Final = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_BOUNDS: Final = {"sigma_min": 0.002, "sigma_max": 120.0}
_EDM: Final[dict[str, Any]] = {**_BOUNDS, "sigma_data": 1.0, "prediction_type": "v_prediction"}


def change_to_single_file(draft: Draft) -> None:
    """Put all weights into one file, perhaps with markers, which its scheduler may not fit."""
    to_single_file(draft, draft.random.choice(sorted(MARKERS)))


def to_single_file(draft: Draft, kind: str) -> None:
    """Put all weights into one file, with what this kind in `MARKERS` adds."""
    if draft.base not in PREFIXES or draft.network is not None:
        raise ValueError("diffusers cannot read it from one file, or draws its weights anew")
    tensors = _original_tensors(draft)
    draft.note(f"one file: {kind}")
    MARKERS[kind](draft, tensors)
    draft.single_file = draft.folder.with_suffix(".safetensors")
    save_file(tensors, draft.single_file)


def _original_tensors(draft: Draft) -> Tensors:
    """Remove the weights of UNet and autoencoder, and return all under their original keys."""
    tensors: dict[str, list[tuple[int, Any]]] = {}
    networks = (*draft.text_encoders, "unet", "vae")
    files = [file for each in networks for file in (draft.folder / each).glob("*.safetensors")]
    for network, file in zip(networks, files, strict=True):
        name = file.relative_to(draft.folder).as_posix()
        weights = {_current(key): value for key, value in draft.read_tensors(name).items()}
        for key, place in origins(network, weights, PREFIXES[draft.base]).items():
            tensors.setdefault(place.key, []).append(_stored(weights[key], place))
    for file in files[-2:]:
        file.unlink()
    return {
        key: np.concatenate([part for _, part in sorted(parts, key=lambda each: each[0])])
        for key, parts in tensors.items()
    }


def _current(key: str) -> str:
    """Return the key of today for one of 2022."""
    *parents, leaf, kind = key.removeprefix("text_model.").split(".")
    if parents and parents[-1] == "0" and "attentions" in parents:
        leaf = _OLD_ATTENTION.get(leaf, leaf)
    return ".".join([*parents, leaf, kind])


def _stored(weight: Any, place: Origin) -> tuple[int, Any]:
    """Return which part of the stored tensor the weight is, and its content."""
    content = np.ascontiguousarray(weight.T) if place.transposed else weight
    return place.part[0] if place.part else 0, content


def _no_marker(draft: Draft, tensors: Tensors) -> None:
    """Leave the file as it is."""


def _v_prediction(draft: Draft, tensors: Tensors) -> None:
    tensors["v_pred"] = np.zeros(0, np.float16)
    draft.edit(SCHEDULER, prediction_type=draft.random.choice(["v_prediction", "epsilon"]))


def _zero_snr(draft: Draft, tensors: Tensors) -> None:
    _v_prediction(draft, tensors)
    tensors["ztsnr"] = np.zeros(0, np.float16)
    draft.edit(INDEX, scheduler=["diffusers", "EulerDiscreteScheduler"])
    draft.edit(SCHEDULER, rescale_betas_zero_snr=draft.random.choice([True, True, False]))


def _edm(draft: Draft, tensors: Tensors) -> None:
    for name, value in _BOUNDS.items():
        tensors[f"edm_vpred.{name}"] = np.array(value, np.float32)
    draft.edit(INDEX, scheduler=["diffusers", "EDMEulerScheduler"])
    draft.edit(SCHEDULER, **_EDM)
    draft.edit(SCHEDULER, **draft.random.choice([{}, {}, {"sigma_max": 80.0}]))


def _average(draft: Draft, tensors: Tensors) -> None:
    tensors["model_ema.decay"] = np.zeros(1, np.float32)


def _unknown(draft: Draft, tensors: Tensors) -> None:
    tensors[draft.random.choice(["v_prediction", "edm_other", "extra.bias"])] = np.zeros(1)


MARKERS: Final[dict[str, Callable[[Draft, Tensors], None]]] = {
    "nothing else": _no_marker,
    "v_pred": _v_prediction,
    "v_pred and ztsnr": _zero_snr,
    "edm_vpred": _edm,
    "a running average": _average,
    "an unknown key": _unknown,
}

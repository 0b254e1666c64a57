"""Draw layouts of weight files, and damages."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tools.parity.fuzz.draft import INDEX, REMOVED, SCHEDULER, TEXT, UNET, VAE, Draft, Tensors


def _stem(file: str) -> str:
    return file.rpartition("/")[2].removesuffix(".safetensors")


def _pick_file(draft: Draft) -> str:
    files = [UNET, UNET, VAE, TEXT]
    if draft.is_xl:
        files.append("text_encoder_2/model.safetensors")
    return draft.random.choice(files)


def _perturb(tensors: Tensors) -> None:
    """Change the weights visibly, as those of another model."""
    for key in sorted(tensors)[::2]:
        if tensors[key].dtype.kind == "f" or tensors[key].dtype.name == "bfloat16":
            tensors[key] = (tensors[key].astype(np.float32) * 0.7).astype(tensors[key].dtype)


def shard(draft: Draft, file: str, name: str, *, keep_whole: bool, variant: str = "") -> None:
    """Write the weights in two shards and an index."""
    folder = (draft.folder / file).parent
    whole = draft.read_tensors(file)
    names = sorted(whole)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard_name = name.format(number)
        save_file({key: whole[key] for key in part}, folder / shard_name)
        weight_map |= dict.fromkeys(part, shard_name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{_stem(file)}.safetensors.index{variant}.json").write_text(json.dumps(index))
    if not keep_whole:
        (draft.folder / file).unlink()


def store_as(path: Path, dtype: str) -> None:
    """Write the weights of a file in another dtype, as safetensors spells it."""
    import ml_dtypes  # as in `Draft.read_tensors`

    types = {
        "F64": np.float64,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
    }
    tensors = load_file(path)
    for key, tensor in tensors.items():
        if tensor.dtype.kind != "i":
            stored = tensor.astype(np.float32).astype(types[dtype])
            tensors[key] = stored if dtype == "F64" else stored.view(np.uint8)
    save_file(tensors, path)
    if dtype != "F64":
        # safetensors does not write these from numpy. They are bytes in the file now.
        content = path.read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        header = content[8:end].replace(b'"dtype":"U8"', f'"dtype":"{dtype}"'.encode())
        header += b" " * (-len(header) % 8)
        path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def change_layout(draft: Draft) -> None:
    """Arrange the weight files of a network in another way."""
    _change_file(draft, LAYOUTS)


def _shards(draft: Draft, file: str) -> None:
    shard(draft, file, f"{_stem(file)}-0000{{}}-of-00002.safetensors", keep_whole=False)


def _shards_beside_another_whole_file(draft: Draft, file: str) -> None:
    shard(draft, file, f"{_stem(file)}-0000{{}}-of-00002.safetensors", keep_whole=True)
    draft.tensors(file, _perturb)


def _two_sets_of_shards(draft: Draft, file: str) -> None:
    shard(draft, file, f"{_stem(file)}-0000{{}}-of-00002.safetensors", keep_whole=True)
    draft.tensors(file, _perturb)
    shard(draft, file, f"{_stem(file)}-0000{{}}-of-00003.safetensors", keep_whole=False)


def _both_names(draft: Draft, file: str) -> None:
    other = "model" if _stem(file) != "model" else "diffusion_pytorch_model"
    content = (draft.folder / file).read_bytes()
    draft.tensors(file, _perturb)
    (draft.folder / file).with_name(f"{other}.safetensors").write_bytes(content)


def _other_name_only(draft: Draft, file: str) -> None:
    other = "model" if _stem(file) != "model" else "diffusion_pytorch_model"
    (draft.folder / file).rename((draft.folder / file).with_name(f"{other}.safetensors"))


def _half_only(draft: Draft, file: str) -> None:
    (draft.folder / file).rename((draft.folder / file).with_name(f"{_stem(file)}.fp16.safetensors"))


def _half_of_all_but_one(draft: Draft, file: str) -> None:
    """Only one network has no full weights; the others have other weights in half precision."""
    content = (draft.folder / UNET).read_bytes()
    draft.tensors(UNET, _perturb)
    half = (draft.folder / UNET).with_name(f"{_stem(UNET)}.fp16.safetensors")
    (draft.folder / UNET).rename(half)
    (draft.folder / UNET).write_bytes(content)
    if file != UNET:
        _half_only(draft, file)


def _shards_without_index(draft: Draft, file: str) -> None:
    _shards(draft, file)
    (draft.folder / file).with_name(f"{_stem(file)}.safetensors.index.json").unlink()


def _missing_shard(draft: Draft, file: str) -> None:
    _shards(draft, file)
    (draft.folder / file).with_name(f"{_stem(file)}-00002-of-00002.safetensors").unlink()


def _pickle_only(draft: Draft, file: str) -> None:
    (draft.folder / file).rename((draft.folder / file).with_suffix(".bin"))


def _half_shards(draft: Draft, file: str) -> None:
    stem = _stem(file)
    name = f"{stem}.fp16-0000{{}}-of-00002.safetensors"
    shard(draft, file, name, keep_whole=False, variant=".fp16")


LAYOUTS = {
    "shards": _shards,
    "shards beside another whole file": _shards_beside_another_whole_file,
    "two sets of shards": _two_sets_of_shards,
    "both names": _both_names,
    "the other name only": _other_name_only,
    "half precision only": _half_only,
    "other weights in half precision": _half_of_all_but_one,
    "shards in half precision": _half_shards,
    "shards without an index": _shards_without_index,
    "a missing shard": _missing_shard,
    "a pickle only": _pickle_only,
}


def damage(draft: Draft) -> None:
    """Damage a file."""
    _change_file(draft, DAMAGES)


def _change_file(draft: Draft, kinds: Mapping[str, Callable[[Draft, str], None]]) -> None:
    """Change a file in one of these ways, and record which."""
    file = _pick_file(draft)
    kind = draft.random.choice(sorted(kinds))
    draft.note(f"{file}: {kind}")
    kinds[kind](draft, file)


def _truncated(draft: Draft, file: str) -> None:
    path = draft.folder / file
    path.write_bytes(path.read_bytes()[: -draft.random.randrange(1, 2000)])


def _not_finite(draft: Draft, file: str) -> None:
    key = draft.random.choice(draft.keys(file))
    value = draft.random.choice([np.nan, np.inf])

    def put(tensors: Tensors) -> None:
        changed = tensors[key].copy().reshape(-1)
        changed[-1] = value
        tensors[key] = changed.reshape(tensors[key].shape)

    draft.tensors(file, put)


def _missing_key(draft: Draft, file: str) -> None:
    key = draft.random.choice(draft.keys(file))

    def remove(tensors: Tensors) -> None:
        del tensors[key]

    draft.tensors(file, remove)


def _extra_key(draft: Draft, file: str) -> None:
    name = draft.random.choice(["lora_unet_x.lora_up.weight", "extra.bias", "position_ids"])
    draft.tensors(file, lambda tensors: tensors.update({name: np.zeros(3, np.float32)}))


def _wrong_shape(draft: Draft, file: str) -> None:
    key = draft.random.choice(draft.keys(file))
    draft.tensors(file, lambda t: t.update({key: np.zeros((*t[key].shape, 2), np.float32)}))


def _wrong_dtype(draft: Draft, file: str) -> None:
    key = draft.random.choice(draft.keys(file))
    dtype = draft.random.choice([np.float64, np.int8, np.float32, np.float16])
    draft.tensors(file, lambda t: t.update({key: t[key].astype(dtype)}))


def _foreign_names(draft: Draft, file: str) -> None:
    def rename(tensors: Tensors) -> None:
        for key in list(tensors):
            tensors[f"model.diffusion_model.{key}"] = tensors.pop(key)

    draft.tensors(file, rename)


def _other_model(draft: Draft, file: str) -> None:
    draft.tensors(file, _perturb)


def _broken_json(draft: Draft, file: str) -> None:
    files = [f"{file.partition('/')[0]}/config.json", SCHEDULER]
    path = draft.folder / draft.random.choice([*files, INDEX])
    text = path.read_text(encoding="utf-8")
    path.write_text(draft.random.choice(["", "[]", text[:-3], "{}"]), encoding="utf-8")


def _missing_field(draft: Draft, file: str) -> None:
    config = f"{file.partition('/')[0]}/config.json"
    name = draft.random.choice(sorted(draft.read(config)))
    draft.edit(config, **{name: REMOVED})


def _missing_file(draft: Draft, file: str) -> None:
    path = draft.random.choice(sorted(draft.folder.glob("*/*")))
    draft.note(path.relative_to(draft.folder).as_posix())
    path.unlink()


DAMAGES = {
    "truncated": _truncated,
    "NaN or infinity": _not_finite,
    "a missing key": _missing_key,
    "an extra key": _extra_key,
    "a wrong shape": _wrong_shape,
    "another dtype": _wrong_dtype,
    "keys of the original format": _foreign_names,
    "other weights": _other_model,
    "broken JSON": _broken_json,
    "a missing field": _missing_field,
    "a missing file": _missing_file,
}

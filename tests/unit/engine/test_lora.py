"""A LoRA file changes the weights that diffusers changes, by the same amounts, or is refused."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.lora import MergedTensors, digest_with, read_loras
from imagefleet.worker.engine.checkpoint.tensor_files import TensorFiles
from imagefleet.worker.engine.checkpoint.weights import WeightMapping
from imagefleet.worker.engine.families.stable_diffusion.lora_names import LORA_NAMES
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import AppliedLora, LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.settings.worker_settings import WorkerSettings
from tests.unit.engine.parity import FOLDER, load_in_float32, lora_options, read_model, worst
from tools.parity.lora_cases import CASES

LORAS: Final = FOLDER / "loras"
EXPECTED: Final = load_file(LORAS / "expected.safetensors")
UNET: Final = "lora_unet_down_blocks_0_attentions_0_proj_in"


def _mappings(base: str) -> dict[str, WeightMapping]:
    files = CheckpointFiles(FOLDER / base)
    networks = read_model(files).networks()
    opened = files.open_weights(tuple(networks))
    return {
        name: WeightMapping(name, network, opened[name])
        for name, network in networks.items()
        if name != "vae"
    }


def _merge(base: str, options: Sequence[LoraOption]) -> dict[str, NDArray[Any]]:
    """Return by `network|key` the weights that change, and their values."""
    mappings = _mappings(base)
    factors = read_loras(
        options, {name: each.shapes for name, each in mappings.items()}, LORA_NAMES
    )
    opened = CheckpointFiles(FOLDER / base).open_weights(tuple(mappings))
    merged = {}
    for network, by_key in factors.items():
        stored = {_stored(opened[network], key): each for key, each in by_key.items()}
        tensors = MergedTensors(opened[network], stored)
        for key, name in zip(by_key, stored, strict=True):
            whole = tuple(slice(None) for _ in tensors.shapes[name])
            merged[f"{network}|{key}"] = tensors.read_slice(name, whole)
    return merged


def _stored(files: TensorFiles, key: str) -> str:
    return key if key in files.shapes else f"text_model.{key}"


@pytest.mark.parametrize("case", CASES)
def test_the_merged_weights_are_those_that_diffusers_fuses(case: str) -> None:
    base, scales = CASES[case]
    merged = _merge(base, lora_options(scales))
    expected = {
        key.partition("|")[2]: tensor
        for key, tensor in EXPECTED.items()
        if key.startswith(f"{case}|")
    }
    assert merged.keys() == expected.keys()
    for key, tensor in expected.items():
        assert merged[key].dtype == np.float32
        assert worst(merged[key].reshape(tensor.shape), tensor) < 1e-6, key


def test_a_slice_of_a_merged_weight_is_that_slice_of_the_whole() -> None:
    mappings = _mappings("older")
    factors = read_loras(
        lora_options({"kohya": 1.0}),
        {name: each.shapes for name, each in mappings.items()},
        LORA_NAMES,
    )
    files = CheckpointFiles(FOLDER / "older").open_weights(("unet",))["unet"]
    tensors = MergedTensors(files, factors["unet"])
    for key in factors["unet"]:
        whole = tensors.read_slice(key, tuple(slice(None) for _ in tensors.shapes[key]))
        index = (slice(3, 9), slice(1, 5), *[slice(None)] * (whole.ndim - 2))
        np.testing.assert_allclose(tensors.read_slice(key, index), whole[index], rtol=1e-6)


def test_the_engine_merges_and_names_what_it_merged(cache_dir: Path) -> None:
    options = ModelOptions(loras=lora_options({"kohya": 0.8}))
    plain = load_engine(str(FOLDER / "older"), devices=1, cache_dir=cache_dir).info
    info = load_engine(str(FOLDER / "older"), devices=1, cache_dir=cache_dir, options=options).info
    assert plain.loras == ()
    (applied,) = info.loras
    assert (applied.name, applied.scale) == ("kohya", 0.8)
    assert info.digest == digest_with(plain.digest, info.loras) != plain.digest
    other = AppliedLora(name="kohya", digest=applied.digest, scale=0.7)
    assert digest_with(plain.digest, [other]) != info.digest


def test_weights_of_8_bits_have_a_digest_of_their_own() -> None:
    lora = AppliedLora(name="kohya", digest="sha256:1", scale=0.8)
    assert digest_with("sha256:0", ()) == "sha256:0"
    digests = {
        digest_with("sha256:0", each, int8_weights=int8)
        for each in ((), (lora,))
        for int8 in (False, True)
    }
    assert len(digests) == 4


def test_the_merged_weight_reaches_the_network() -> None:
    files = CheckpointFiles(FOLDER / "older")
    options = lora_options({"peft": 1.0})
    _, weights = load_in_float32(files, options=ModelOptions(loras=options))
    block = weights.denoiser["down_blocks"][0]["attentions"][0]["transformer_blocks"][0]
    key = "unet|down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.weight"
    assert worst(np.asarray(block["attn1"]["to_k"]["kernel"]).T, EXPECTED[f"peft|{key}"]) < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{UNET}.dora_scale": np.ones(1)}, "is a DoRA, which this engine does not merge"),
        ({f"{UNET}.hada_w1_a": np.ones(1)}, "is a LoHa"),
        ({f"{UNET}.lora_mid.weight": np.ones(1)}, "is a LoRA with a third factor"),
        ({"lora_unet_other.lora_up.weight": np.ones((2, 2))}, "1 key fits no weight of this model"),
        ({"some.key": np.ones(1)}, "the first some.key; take a LoRA that was trained"),
        (
            {f"{UNET}.lora_up.weight": np.ones((9, 3, 1, 1))},
            r"do not make unet down_blocks\.0\.att",
        ),
        ({f"{UNET}.lora_down.weight": np.full((3, 16, 1, 1), np.nan)}, "holds NaN or infinity"),
        ({f"{UNET}.lora_down.weight": np.ones(())}, r"lora_down\.weight \[\] and .* do not make"),
        (
            {
                f"{UNET}.lora_down.weight": np.ones((0, 16, 1, 1)),
                f"{UNET}.lora_up.weight": np.ones((16, 0, 1, 1)),
            },
            r"lora_down\.weight \[0, 16, 1, 1\] is empty; take a LoRA that was saved whole",
        ),
        (
            {
                f"{UNET}.lora_down.weight": np.full((3, 16, 1, 1), 2e19),
                f"{UNET}.lora_up.weight": np.full((16, 3, 1, 1), 2e19),
            },
            r"lora_up\.weight and alpha are so large that they make infinite weights",
        ),
        ({f"{UNET}.alpha": np.ones(0)}, r"alpha \[0\] is empty"),
        (
            {"\x1b[31m\n" + 9_000 * "x": np.ones(1)},
            r"the first \\x1b\[31m\\nx{180,199}…; take a LoRA",
        ),
        ({f"{UNET}.lora_up.weight": None}, r"proj_in\.weight has one of its two factors only"),
    ],
)
def test_a_file_that_cannot_be_merged_is_refused_in_one_sentence(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors: dict[str, Any] = {**load_file(LORAS / "kohya.safetensors")}
    for key, value in change.items():
        if value is None:
            del tensors[key]
        else:
            tensors[key] = np.asarray(value, np.float32)
    file = tmp_path / "changed.safetensors"
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=message) as caught:
        _merge("older", [LoraOption(name="changed", path=str(file))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64])
def test_an_alpha_may_have_axes_and_be_a_whole_number(
    shape: tuple[int, ...], dtype: type, tmp_path: Path
) -> None:
    """Some trainers write the shape [1]."""
    key = "unet|down_blocks.0.attentions.0.proj_in.weight"
    plain = _merge("older", lora_options({"kohya": 1.0}))[key]
    merged = _merge("older", [_write_kohya(tmp_path, "alpha", np.full(shape, 1, dtype))])[key]
    np.testing.assert_array_equal(merged, plain)


def test_an_alpha_of_several_numbers_is_refused(tmp_path: Path) -> None:
    option = _write_kohya(tmp_path, "alpha", np.ones(3, np.float32))
    with pytest.raises(CheckpointError, match=r"proj_in\.alpha is \[3\], but alpha is one number"):
        _merge("older", [option])


def test_a_value_beyond_float32_is_refused(tmp_path: Path) -> None:
    option = _write_kohya(tmp_path, "alpha", np.full((), 1e300, np.float64))
    with pytest.raises(CheckpointError, match=r"proj_in\.alpha holds NaN or infinity"):
        _merge("older", [option])


@pytest.mark.parametrize(("part", "shape"), [("alpha", ()), ("lora_up.weight", (16, 3, 1, 1))])
def test_a_dtype_that_numpy_does_not_have_is_refused(
    part: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    option = _write_kohya(tmp_path, part, np.zeros(shape, np.uint8))
    _declare_float8(Path(option.path), f"{UNET}.{part}")
    with pytest.raises(CheckpointError, match=r"is F8_E4M3, .* to F32 or F16 or BF16$"):
        _merge("older", [option])


def _write_kohya(folder: Path, part: str, value: NDArray[Any]) -> LoraOption:
    """Write the file with another value of one part of one layer."""
    tensors: dict[str, Any] = {**load_file(LORAS / "kohya.safetensors")}
    file = folder / "changed.safetensors"
    save_file(tensors | {f"{UNET}.{part}": value}, file)
    return LoraOption(name="changed", path=str(file))


def _declare_float8(file: Path, key: str) -> None:
    """Change the dtype of a tensor of bytes in the file's header."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header[key]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def _with_settings(folder: Path, settings: object) -> LoraOption:
    """Write the file in PEFT's format with this header: a text, or an object as JSON."""
    text = settings if isinstance(settings, str) else json.dumps(settings)
    file = folder / "settings.safetensors"
    save_file(load_file(LORAS / "peft.safetensors"), file, {"lora_adapter_metadata": text})
    return LoraOption(name="settings", path=str(file))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "the header's lora_adapter_metadata is no JSON "),
        ([1], "the header's lora_adapter_metadata is no JSON object; save it again"),
        ({"unet.lora_alpha": "x"}, r"unet\.lora_alpha='x' is no finite number"),
        ({"unet.lora_alpha": float("nan")}, r"unet\.lora_alpha=nan is no finite number"),
        ({"unet.alpha_pattern": [1]}, r"unet\.alpha_pattern=\[1\] is no JSON object"),
        ({"unet.alpha_pattern": {"to_k": None}}, r"alpha_pattern 'to_k'=None is no finite number"),
        ({"unet.alpha_pattern": {"(": 1}}, r"has '\(', which is no regular expression"),
        ({"unet.alpha_pattern": {"(?i)a": 1}}, r"has '\(\?i\)a', which is no regular expression"),
        ({"unet.alpha_pattern": {"a{99999999999}": 1}}, "no regular expression .*too large"),
        ({"unet.alpha_pattern": {r"(\w+)+x": 1}}, "which may take hours to match: it repeats a gr"),
        ({"unet.alpha_pattern": {".*.*.*.*x": 1}}, r"or more than 3 parts; write out the names"),
        ({"unet.lora_alpha": 10**400}, r"unet\.lora_alpha=10{400} is no finite number"),
        ({"unet.use_dora": "x" * 9_000}, r"use_dora='x{900,990}…$"),
    ],
)
def test_settings_of_peft_that_are_damaged_are_refused_in_one_sentence(
    settings: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        _merge("older", [_with_settings(tmp_path, settings)])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "unet", "text"),
    [
        ({}, 3, 3),
        ({"unet.lora_alpha": 6, "text_encoder.lora_alpha": 1.5}, 6, 1.5),
        ({"unet.lora_alpha": 6}, 6, 8),
        ({"unet.alpha_pattern": {"to_q": 1, r"attn1\.to_[kv]": 2, "to_k": 4}}, 2, 8),
        ({"unet.lora_alpha": 6, "unet.alpha_pattern": {"o_k": 2}}, 6, 8),
        ({"text_encoder.alpha_pattern": {"text_model.encoder.layers.0.self_attn.v_proj": 2}}, 8, 2),
        ({"text_encoder.alpha_pattern": {"^encoder.layers.0.self_attn.v_proj": 2}}, 8, 2),
    ],
)
def test_settings_of_peft_give_alpha_by_network_and_pattern(
    settings: dict[str, Any], unet: float, text: float, tmp_path: Path
) -> None:
    """PEFT's own default is 8. Without settings alpha is the rank, which is 3 here."""
    shapes = {name: each.shapes for name, each in _mappings("older").items()}
    factors = read_loras([_with_settings(tmp_path, settings or "")], shapes, LORA_NAMES)
    key = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_k.weight"
    assert factors["unet"][key][0].scale == unet / 3
    key = "encoder.layers.0.self_attn.v_proj.weight"
    assert factors["text_encoder"][key][0].scale == text / 3


def test_settings_of_peft_that_are_not_merged_are_refused(tmp_path: Path) -> None:
    option = _with_settings(tmp_path, {"unet.use_rslora": True})
    with pytest.raises(CheckpointError, match=r"unet\.use_rslora=True, which is not supported"):
        _merge("older", [option])


@pytest.mark.parametrize("value", ["pissa", "pissa_niter_16", "olora"])
def test_a_lora_that_changes_the_weights_of_the_model_is_refused(
    tmp_path: Path, value: str
) -> None:
    """PEFT subtracts its first factors from them."""
    for accepted, setting in ((True, "gaussian"), (False, value)):
        option = _with_settings(tmp_path, {"unet.init_lora_weights": setting})
        with nullcontext() if accepted else pytest.raises(CheckpointError, match=setting):
            _merge("older", [option])


def test_a_file_of_another_model_or_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="keys fit no weight of this model"):
        _merge("older", lora_options({"kohya_xl": 1.0}))
    with pytest.raises(CheckpointError, match=r"lora gone: .* is not a file"):
        _merge("older", [LoraOption(name="gone", path=str(tmp_path / "gone.safetensors"))])
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(CheckpointError, match="holds no LoRA"):
        _merge("older", [LoraOption(name="empty", path=str(tmp_path / "empty.safetensors"))])


@pytest.mark.parametrize(
    ("text", "path", "scale"),
    [
        ("a=/loras/b.safetensors:0.8", "/loras/b.safetensors", 0.8),
        ("a=b.safetensors", "b.safetensors", 1.0),
        ("a=C:/b.safetensors", "C:/b.safetensors", 1.0),
        ("a=b:-1", "b", -1.0),
    ],
)
def test_an_option_is_a_name_a_path_and_perhaps_a_scale(text: str, path: str, scale: float) -> None:
    assert LoraOption.parse(text) == LoraOption(name="a", path=path, scale=scale)


@pytest.mark.parametrize("text", ["a", "=b", "a=", "a=b:much", "a=b:nan"])
def test_the_setting_refuses_what_is_no_name_and_path(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"IMAGEFLEET_LORA: .* write name=path or"):
        WorkerSettings.load(lora=(text,))


def test_a_file_with_kohya_names_of_both_formats_is_known() -> None:
    original = "lora_unet_input_blocks_4_1_proj_in.lora_up.weight"
    renamed = "lora_unet_down_blocks_1_attentions_0_proj_in.lora_up.weight"
    text = "lora_te_text_model_encoder_layers_0_mlp_fc1.alpha"
    assert LORA_NAMES.mixture([original, renamed])
    assert not LORA_NAMES.mixture([original, text])
    assert not LORA_NAMES.mixture([renamed, text])

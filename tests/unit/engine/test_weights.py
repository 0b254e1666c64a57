"""Loading is strict: one error lists every weight that does not match."""

import hashlib
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.checkpoint.config_reader import Json
from imagefleet.worker.engine.checkpoint.weights import weight_entries
from imagefleet.worker.engine.families.flux1.transformer import Transformer as Flux1Transformer
from imagefleet.worker.engine.families.flux1.transformer_config import (
    TransformerConfig as Flux1Config,
)
from imagefleet.worker.engine.families.flux2_klein.transformer import (
    Transformer as Flux2Transformer,
)
from imagefleet.worker.engine.families.flux2_klein.transformer_config import (
    TransformerConfig as Flux2Config,
)
from imagefleet.worker.engine.families.flux2_klein.vae import Flux2Vae, Flux2VaeConfig
from imagefleet.worker.engine.families.stable_diffusion.control_net import ControlNet
from imagefleet.worker.engine.families.stable_diffusion.control_net_config import ControlNetConfig
from imagefleet.worker.engine.families.stable_diffusion.unet import UNet
from imagefleet.worker.engine.families.stable_diffusion.unet_config import UNetConfig
from imagefleet.worker.engine.families.stable_diffusion_3.transformer import (
    Transformer as Sd3Transformer,
)
from imagefleet.worker.engine.families.stable_diffusion_3.transformer_config import (
    TransformerConfig as Sd3Config,
)
from imagefleet.worker.engine.families.z_image.transformer import Transformer
from imagefleet.worker.engine.families.z_image.transformer_config import TransformerConfig
from imagefleet.worker.engine.networks.abstract_network import abstract_network
from imagefleet.worker.engine.networks.clip_text import ClipText, ClipTextConfig
from imagefleet.worker.engine.networks.qwen3_text import Qwen3Config, Qwen3Text
from imagefleet.worker.engine.networks.safety import SafetyChecker, SafetyConfig
from imagefleet.worker.engine.networks.t5_text import T5Config, T5Text
from imagefleet.worker.engine.networks.vae import Vae, VaeConfig
from tests.unit.engine.parity import FOLDER, load_in_float32
from tools.parity.fuzz.draw_files import store_as

UNET = "unet/diffusion_pytorch_model.safetensors"
VAE = "vae/diffusion_pytorch_model.safetensors"
Tensors = dict[str, NDArray[Any]]


def _load(folder: Path) -> None:
    files = CheckpointFiles(folder)
    load_in_float32(files)


def _change(file: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def test_one_error_lists_every_missing_unused_and_misshapen_weight(
    checkpoint: Path,
) -> None:
    def break_unet(tensors: Tensors) -> None:
        del tensors["conv_in.weight"]
        tensors["conv_in.extra"] = np.zeros(3, np.float16)
        tensors["conv_out.bias"] = np.zeros(5, np.float16)

    _change(checkpoint / UNET, break_unet)
    _change(checkpoint / VAE, lambda tensors: tensors.pop("decoder.conv_in.bias"))
    with pytest.raises(CheckpointError) as caught:
        _load(checkpoint)
    assert str(caught.value).splitlines() == [
        "4 weights do not match the configs of this checkpoint (unet/config.json and the file of "
        "unet are of different models; vae/config.json and the file of vae are of different "
        "models); "
        "take weights and configs from the same model:",
        "  unet: conv_in.weight is missing",
        "  unet: conv_in.extra is not a weight of this network",
        "  unet: conv_out.bias has shape [5], but the config requires [4]",
        "  vae: decoder.conv_in.bias is missing",
    ]


@pytest.mark.parametrize(("dtype", "stored"), [(np.int8, "I8"), (np.bool_, "BOOL")])
def test_weights_that_are_not_floating_point_are_refused(
    checkpoint: Path, dtype: type, stored: str
) -> None:
    key = "conv_in.weight"
    _change(checkpoint / UNET, lambda t: t.update({key: t[key].astype(dtype)}))
    with pytest.raises(CheckpointError) as caught:
        _load(checkpoint)
    assert str(caught.value) == (
        f"unet: {key} has dtype {stored}, but must have F64, F32, F16, BF16, F8_E5M2 or F8_E4M3 "
        "(1 such weight); save the model again in one of these dtypes, without quantization"
    )


def test_a_weight_under_its_old_and_its_current_key_is_refused(checkpoint: Path) -> None:
    def add(tensors: Tensors) -> None:
        old = next(key for key in tensors if key.startswith("text_model."))
        tensors[old.removeprefix("text_model.")] = np.zeros_like(tensors[old])

    _change(checkpoint / "text_encoder" / "model.safetensors", add)
    with pytest.raises(
        CheckpointError, match=r"text_encoder: (\S+) and text_model\.\1 are the same weight"
    ):
        _load(checkpoint)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_a_weight_that_is_not_finite_is_refused_with_its_key(
    checkpoint: Path, value: float, dtype: type
) -> None:
    def put(tensors: Tensors) -> None:
        key = "encoder.mid_block.resnets.1.conv1.weight"
        tensors[key] = tensors[key].astype(dtype)
        tensors[key][-1, -1, -1, -1] = value

    _change(checkpoint / VAE, put)
    with pytest.raises(CheckpointError, match=r"^vae: encoder\.mid_block\S+ holds NaN or infinity"):
        _load(checkpoint)


def test_a_weight_of_64_bits_beyond_float32_is_refused_with_its_key(checkpoint: Path) -> None:
    key = "decoder.conv_in.bias"
    _change(checkpoint / VAE, lambda t: t.update({key: np.full(t[key].shape, 1e39)}))
    with pytest.raises(CheckpointError, match=rf"^vae: {key} holds NaN or infinity"):
        _load(checkpoint)


@pytest.mark.parametrize(
    ("dtype", "byte", "is_finite"),
    [
        ("F8_E4M3", 0x7E, True),  # 448, the largest
        ("F8_E4M3", 0x7F, False),  # NaN; this dtype has no infinity
        ("F8_E4M3", 0xFF, False),
        ("F8_E5M2", 0x7B, True),  # 57344, the largest
        ("F8_E5M2", 0x7C, False),  # infinity
        ("F8_E5M2", 0xFE, False),  # NaN
    ],
)
def test_a_weight_of_8_bits_is_read_unless_it_is_not_finite(
    checkpoint: Path, dtype: str, byte: int, is_finite: bool
) -> None:
    """The meanings of the bytes are those of Micikevicius et al. 2022, table 1."""
    store_as(checkpoint / VAE, dtype)
    content = (checkpoint / VAE).read_bytes()
    (checkpoint / VAE).write_bytes(content[:-1] + bytes([byte]))
    if is_finite:
        _load(checkpoint)
    else:
        with pytest.raises(CheckpointError, match=r"^vae: \S+ holds NaN or infinity"):
            _load(checkpoint)


def test_the_largest_finite_weights_are_read(checkpoint: Path) -> None:
    _change(checkpoint / VAE, lambda t: t["decoder.conv_in.bias"].fill(np.finfo(np.float16).max))
    _load(checkpoint)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("model.diffusion_model.", "looks like a checkpoint in the original format of one file"),
        ("lora_unet_", "looks like a LoRA"),
        ("scaled_fp8.", "looks like a model in fp8 whose weights have scales of their own"),
        ("other.", "has none of its weights: it is of another network"),
    ],
)
def test_the_error_says_what_kind_of_file_it_is_and_lists_five_keys(
    checkpoint: Path, prefix: str, reason: str
) -> None:
    def rename(tensors: Tensors) -> None:
        for key in list(tensors):
            tensors[prefix + key] = tensors.pop(key)

    _change(checkpoint / UNET, rename)
    with pytest.raises(CheckpointError, match=reason) as caught:
        _load(checkpoint)
    _, *listed = str(caught.value).splitlines()
    assert len(listed) == 6
    assert listed[-1].startswith("  and ")


def test_an_autoencoder_without_its_encoder_is_refused(checkpoint: Path) -> None:
    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(("encoder.", "quant_conv."))]:
            del tensors[key]

    _change(checkpoint / VAE, strip)
    with pytest.raises(CheckpointError, match=r"vae: encoder\.conv_in\.bias is missing"):
        _load(checkpoint)


def test_an_unknown_key_is_refused(checkpoint: Path) -> None:
    _change(checkpoint / VAE, lambda t: t.update({"encoder.other": np.zeros(1, np.float16)}))
    with pytest.raises(CheckpointError, match=r"vae: encoder\.other is not a weight of"):
        _load(checkpoint)


def test_a_config_that_does_not_match_the_weights_is_refused(checkpoint: Path) -> None:
    config = checkpoint / "unet" / "config.json"
    config.write_text(config.read_text().replace('"layers_per_block": 1', '"layers_per_block": 2'))
    with pytest.raises(
        CheckpointError, match=r"^100 weights .*unet/config\.json and the file .* different"
    ):
        _load(checkpoint)


def _network(name: str, config: Json) -> Any:
    if config.get("model_type") == "qwen3":
        return abstract_network(Qwen3Text, Qwen3Config.from_json(config, [-1]))
    if config.get("model_type") == "t5":
        return abstract_network(T5Text, T5Config.from_json(config, name))
    if name.startswith("text_encoder"):
        is_projected = config.get("architectures") == ["CLIPTextModelWithProjection"]
        text = ClipTextConfig.from_json(config, is_projected=is_projected)
        return abstract_network(ClipText, text)
    if name == "safety_checker":
        return abstract_network(SafetyChecker, SafetyConfig.from_json(config, {}))
    network, reader = NETWORKS[config.get("_class_name", name)]
    return abstract_network(network, reader.from_json(config))


NETWORKS: Final[dict[str, tuple[Any, Any]]] = {
    "unet": (UNet, UNetConfig),
    "controlnet": (ControlNet, ControlNetConfig),
    "transformer": (Transformer, TransformerConfig),
    "FluxTransformer2DModel": (Flux1Transformer, Flux1Config),
    "SD3Transformer2DModel": (Sd3Transformer, Sd3Config),
    "vae": (Vae, VaeConfig),
    "Flux2Transformer2DModel": (Flux2Transformer, Flux2Config),
    "AutoencoderKLFlux2": (Flux2Vae, Flux2VaeConfig),
}
PUBLISHED = json.loads((FOLDER / "full_size.json").read_text())


def _class_of(name: str, config: Json) -> str:
    return str(config.get("_class_name") or config.get("model_type") or name)


OF_EACH_CLASS: Final = {
    _class_of(name, PUBLISHED[model][name]["config"]): (model, name)
    for model in PUBLISHED
    for name in PUBLISHED[model]
}


@pytest.mark.parametrize(("model", "network"), OF_EACH_CLASS.values())
def test_a_network_without_weights_is_the_one_that_jax_would_trace(
    model: str, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PUBLISHED[model][network]["config"]
    described = _network(network, config)

    def trace(make: Any, config: Any) -> Any:
        return nnx.eval_shape(lambda: make(config))

    monkeypatch.setattr(sys.modules[__name__], "abstract_network", trace)
    traced = _network(network, config)
    assert nnx.graphdef(described) == nnx.graphdef(traced)
    weights, expected = (jax.tree.leaves(nnx.state(each)) for each in (described, traced))
    assert len(weights) > 10
    assert [(each.shape, each.dtype) for each in weights] == [
        (each.shape, each.dtype) for each in expected
    ]


@pytest.mark.parametrize(
    ("model", "network"), [(model, name) for model in PUBLISHED for name in PUBLISHED[model]]
)
def test_every_weight_of_the_published_models_is_known(model: str, network: str) -> None:
    expected = PUBLISHED[model][network]
    entries = weight_entries(_network(network, expected["config"]))
    assert sum(math.prod(entry.shape) for entry in entries) == expected["parameters"]
    lines = sorted(f"{entry.key} {list(entry.stored_shapes[0])}" for entry in entries)
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == expected["sha256"]

"""LoRA files in the formats that exist, and the weights that diffusers makes with them.

Input: the checkpoints of `make_parity_fixtures`. Output: files in kohya's format (with the layers
of diffusers, and with those of the original format), in PEFT's and in diffusers' older one, and
each weight that fusing changes.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tools.parity.checkpoints import Tensors
from tools.parity.lora_cases import CASES

RANK = 3
_BLOCK = "attentions.0.transformer_blocks.0"
KOHYA = {
    f"lora_unet_down_blocks_0_{_BLOCK.replace('.', '_')}_attn1_to_q": 1.0,
    f"lora_unet_down_blocks_0_{_BLOCK.replace('.', '_')}_attn2_to_out_0": 1.0,
    f"lora_unet_down_blocks_0_{_BLOCK.replace('.', '_')}_ff_net_0_proj": 3.0,
    "lora_unet_down_blocks_0_attentions_0_proj_in": 1.0,
    "lora_unet_down_blocks_0_resnets_0_conv1": 1.5,
    "lora_unet_up_blocks_1_resnets_1_conv_shortcut": 1.5,
    "lora_unet_down_blocks_0_resnets_0_time_emb_proj": 1.0,
    "lora_te_text_model_encoder_layers_0_self_attn_q_proj": 2.0,
    "lora_te_text_model_encoder_layers_0_self_attn_out_proj": 2.0,
    "lora_te_text_model_encoder_layers_1_mlp_fc1": 1.0,
}
"""By layer: alpha. diffusers gives the commonest alpha of the UNet to all its attention layers, so
theirs is the commonest here."""
KOHYA_XL = {
    "lora_unet_input_blocks_4_1_transformer_blocks_0_attn1_to_k": 1.0,
    "lora_unet_input_blocks_4_1_proj_in": 1.0,
    "lora_unet_middle_block_1_transformer_blocks_2_ff_net_2": 1.0,
    "lora_unet_output_blocks_0_1_transformer_blocks_1_attn2_to_v": 1.0,
    "lora_unet_input_blocks_1_0_in_layers_2": 2.0,
    "lora_te1_text_model_encoder_layers_0_self_attn_out_proj": 2.0,
    "lora_te2_text_model_encoder_layers_1_self_attn_out_proj": 2.0,
    "lora_te2_text_model_encoder_layers_2_mlp_fc2": 1.0,
}
PEFT = [
    f"unet.down_blocks.0.{_BLOCK}.attn1.to_k",
    f"unet.up_blocks.1.{_BLOCK}.attn2.to_out.0",
    "unet.mid_block.attentions.0.proj_out",
    "text_encoder.text_model.encoder.layers.0.self_attn.v_proj",
]
PEFT_XL = [
    f"unet.up_blocks.0.{_BLOCK}.attn1.to_q",
    "text_encoder.text_model.encoder.layers.1.self_attn.k_proj",
    "text_encoder_2.text_model.encoder.layers.0.mlp.fc1",
]
PROCESSORS = [
    f"unet.down_blocks.0.{_BLOCK}.attn1.processor.to_q_lora",
    f"unet.mid_block.{_BLOCK}.attn2.processor.to_out_lora",
    "text_encoder.text_model.encoder.layers.0.self_attn.to_q_lora",
    "text_encoder.text_model.encoder.layers.0.self_attn.to_out_lora",
]


def write_loras(target: Path, checkpoints: Path) -> None:
    """Write the files, and `expected.safetensors`: by `case|network|key` the changed weights."""
    target.mkdir(parents=True)
    shapes = {name: _shapes(checkpoints / name) for name in ("older", "xl")}
    generator = torch.Generator().manual_seed(21)

    def factors(shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
        down = torch.randn(RANK, *shape[1:], generator=generator) * 0.1
        up = torch.randn(shape[0], RANK, *[1] * (len(shape) - 2), generator=generator) * 0.1
        return down, up

    for name, base, layers in (("kohya", "older", KOHYA), ("kohya_xl", "xl", KOHYA_XL)):
        tensors: Tensors = {}
        for layer, alpha in layers.items():
            down, up = factors(shapes[base][_KEYS[layer]])
            tensors |= {f"{layer}.lora_down.weight": down, f"{layer}.lora_up.weight": up}
            tensors[f"{layer}.alpha"] = torch.tensor(alpha)
        save_file(tensors, target / f"{name}.safetensors")
    for name, base, names in (("peft", "older", PEFT), ("peft_xl", "xl", PEFT_XL)):
        tensors = {}
        for layer in names:
            down, up = factors(shapes[base][_current(layer)])
            tensors |= {f"{layer}.lora_A.weight": down, f"{layer}.lora_B.weight": up}
        save_file(tensors, target / f"{name}.safetensors", _header(name))
    tensors = {}
    for layer in PROCESSORS:
        down, up = factors(shapes["older"][_current(layer)])
        tensors |= {f"{layer}.down.weight": down, f"{layer}.up.weight": up}
    save_file(tensors, target / "processors.safetensors")
    expected: Tensors = {}
    for case, (base, scales) in CASES.items():
        for key, tensor in _fused(checkpoints / base, target, scales).items():
            expected[f"{case}|{key}"] = tensor
    save_file(expected, target / "expected.safetensors")


def _header(name: str) -> dict[str, str]:
    """Return the header with PEFT's settings for one file. The other has none."""
    if name == "peft":
        return {}
    settings = {f"{each}.lora_alpha": 6 for each in ("unet", "text_encoder", "text_encoder_2")}
    settings |= {f"{each}.r": RANK for each in ("unet", "text_encoder", "text_encoder_2")}
    targets = {
        "unet": ["up_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"],
        "text_encoder": ["encoder.layers.1.self_attn.k_proj"],
        "text_encoder_2": ["text_model.encoder.layers.0.mlp.fc1"],
    }
    more: dict[str, Any] = {f"{each}.target_modules": names for each, names in targets.items()}
    more["unet.alpha_pattern"] = {"to_k": 2, r"attn1\.to_[qk]": 5}
    return {"lora_adapter_metadata": json.dumps(settings | more)}


def _state(pipeline: Any) -> Tensors:
    networks = [name for name in ("text_encoder", "text_encoder_2", "unet") if _has(pipeline, name)]
    return {
        f"{network}|{key.removeprefix('text_model.')}": weight.detach().clone()
        for network in networks
        for key, weight in getattr(pipeline, network).named_parameters()
    }


def _has(pipeline: Any, network: str) -> bool:
    return getattr(pipeline, network, None) is not None


def _fused(checkpoint: Path, folder: Path, scales: dict[str, float]) -> Tensors:
    """Return the weights that change when these files are fused.

    diffusers 0.42 with transformers 5.23 leaves out the text encoders of most files, so theirs are
    computed by the formula.
    """
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    before = _state(pipeline)
    with tempfile.TemporaryDirectory() as place:
        for name in scales:
            _write_unet_part(folder / f"{name}.safetensors", Path(place) / "unet.safetensors")
            pipeline.load_lora_weights(place, weight_name="unet.safetensors", adapter_name=name)
    pipeline.set_adapters(list(scales), list(scales.values()))
    pipeline.fuse_lora(adapter_names=list(scales))
    pipeline.unload_lora_weights()
    after = _state(pipeline)
    changed = {key: after[key] for key in before if not torch.equal(before[key], after[key])}
    for name, scale in scales.items():
        for key, delta in _text_deltas(folder / f"{name}.safetensors").items():
            changed[key] = changed.get(key, before[key]) + scale * delta
    return changed


def _is_text(key: str) -> bool:
    return key.startswith(("lora_te", "text_encoder"))


def _write_unet_part(file: Path, target: Path) -> None:
    tensors = {key: tensor for key, tensor in load_file(file).items() if not _is_text(key)}
    with safe_open(file, framework="pt") as opened:
        header = opened.metadata() or {}
    if "lora_adapter_metadata" in header:
        settings = json.loads(header["lora_adapter_metadata"])
        of_unet = {name: value for name, value in settings.items() if not _is_text(name)}
        header = {**header, "lora_adapter_metadata": json.dumps(of_unet)}
    save_file(tensors, target, header)


def _text_deltas(file: Path) -> Tensors:
    """Return alpha / rank * up @ down by `network|key`, of the text encoders."""
    tensors = load_file(file)
    with safe_open(file, framework="pt") as opened:
        settings = json.loads((opened.metadata() or {}).get("lora_adapter_metadata", "{}"))
    deltas = {}
    for key, down in tensors.items():
        for parts in ((".lora_down", ".lora_up"), (".lora_A", ".lora_B"), (".down", ".up")):
            layer = key.removesuffix(f"{parts[0]}.weight")
            if layer == key or not _is_text(key):
                continue
            place = _KEYS.get(layer) or _current(layer)
            alpha = settings.get(f"{place.partition('|')[0]}.lora_alpha", RANK)
            alpha = float(tensors.get(f"{layer}.alpha", alpha))
            deltas[place] = alpha / RANK * tensors[f"{layer}{parts[1]}.weight"] @ down
    return deltas


def _shapes(checkpoint: Path) -> dict[str, torch.Size]:
    pipeline = DiffusionPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    return {key: weight.shape for key, weight in _state(pipeline).items()}


def _current(layer: str) -> str:
    """Return `network|key` of a layer in PEFT's or the older format."""
    network, _, name = layer.partition(".")
    name = name.removeprefix("text_model.").replace(".processor", "")
    in_text = {"to_out_lora": "out_proj", "to_q_lora": "q_proj"}
    in_unet = {"to_out_lora": "to_out.0", "to_q_lora": "to_q"}
    for old, new in (in_unet if network == "unet" else in_text).items():
        name = name.replace(old, new)
    return f"{network}|{name}.weight"


_LEVEL = f"unet|down_blocks.0.{_BLOCK}"
_KEYS = dict(
    zip(
        [*KOHYA, *KOHYA_XL],
        [
            f"{_LEVEL}.attn1.to_q.weight",
            f"{_LEVEL}.attn2.to_out.0.weight",
            f"{_LEVEL}.ff.net.0.proj.weight",
            "unet|down_blocks.0.attentions.0.proj_in.weight",
            "unet|down_blocks.0.resnets.0.conv1.weight",
            "unet|up_blocks.1.resnets.1.conv_shortcut.weight",
            "unet|down_blocks.0.resnets.0.time_emb_proj.weight",
            "text_encoder|encoder.layers.0.self_attn.q_proj.weight",
            "text_encoder|encoder.layers.0.self_attn.out_proj.weight",
            "text_encoder|encoder.layers.1.mlp.fc1.weight",
            f"unet|down_blocks.1.{_BLOCK}.attn1.to_k.weight",
            "unet|down_blocks.1.attentions.0.proj_in.weight",
            "unet|mid_block.attentions.0.transformer_blocks.2.ff.net.2.weight",
            "unet|up_blocks.0.attentions.0.transformer_blocks.1.attn2.to_v.weight",
            "unet|down_blocks.0.resnets.0.conv1.weight",
            "text_encoder|encoder.layers.0.self_attn.out_proj.weight",
            "text_encoder_2|encoder.layers.1.self_attn.out_proj.weight",
            "text_encoder_2|encoder.layers.2.mlp.fc2.weight",
        ],
        strict=True,
    )
)
"""By layer in kohya's format: `network|key`."""

"""Write tests/fixtures/parity: tiny checkpoints and what PyTorch diffusers computes from them.

    python -m venv torchenv && torchenv/bin/pip install torch diffusers transformers safetensors
    torchenv/bin/python -m tools.make_parity_fixtures tests/fixtures/parity [part…]

`DIFFUSERS_COMMUNITY` names the folder `examples/community` of diffusers' repository; without it,
`weighted_prompts.safetensors` stays as it is.

The only inputs are fixed seeds. The outputs are whole checkpoints (`older` with the key names of
2022, `newer` with current ones, and `xl`) and a safety checker (`safety`), each with an
`expected.safetensors`; `edits.safetensors`, `clip_skips.safetensors`,
`guidance_rescales.safetensors`, `weighted_prompts.safetensors`, `samplers.safetensors`,
`flow_samplers.safetensors`; the names and shapes of the weights of published models; the answers
for well-known checkpoints (`known` and `known_flux1.safetensors`), and for SDXL's base and refiner
together (`ensemble.safetensors`); `loras`; textual inversions (`inversions`); ControlNets
(`controlnets`); images with the bundled model's LoRA (`outline`); images with the second bundled
model (`shapes_dit`); the hidden states of text encoders (`qwen3.safetensors` and
`t5.safetensors`); and the answers for flow models (`z_image.safetensors`, `flux1.safetensors`,
`stable_diffusion_3.safetensors`,
`flux2_klein.safetensors` and `flux2_klein_references.safetensors`). The tests that read them need
no torch. The stored files were made with torch 2.13.0, diffusers 0.42.1 and transformers 5.23.0.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file

from tools.parity.answers import expected
from tools.parity.checkpoints import (
    Tensors,
    ddim_config,
    keep_current_tokenizer_files,
    newer_unet,
    older_unet,
    pndm_config,
    rename_like_2022,
    write_checkpoint,
)
from tools.parity.clip_skip import clip_skips
from tools.parity.control_nets import control_nets
from tools.parity.edits import edits
from tools.parity.flow.flux1_truth import flux1_answers
from tools.parity.flow.flux2_klein_reference_truth import flux2_klein_references
from tools.parity.flow.flux2_klein_truth import flux2_klein_answers
from tools.parity.flow.known_flux1_truth import known_flux1_answers
from tools.parity.flow.known_stable_diffusion_3_truth import known_stable_diffusion_3_answers
from tools.parity.flow.qwen_truth import qwen_states
from tools.parity.flow.schedule_truth import flow_runs
from tools.parity.flow.stable_diffusion_3_truth import stable_diffusion_3_answers
from tools.parity.flow.t5_truth import t5_states
from tools.parity.flow.z_image_truth import z_image_answers
from tools.parity.full_size import full_size
from tools.parity.guidance_rescale import guidance_rescales
from tools.parity.inversions import write_inversions
from tools.parity.known.ensemble import ensemble_answers
from tools.parity.known.truth import converted_single_files, known_answers
from tools.parity.lora import write_loras
from tools.parity.outline import write_outlines
from tools.parity.safety import write_safety_checkpoint
from tools.parity.samplers import sampler_runs
from tools.parity.shapes_dit import write_shapes_dit
from tools.parity.weighting import weighted_states
from tools.parity.xl import expected_of_xl, write_xl_checkpoint

END = "<|endoftext|>"


def write_older(target: Path) -> None:
    pipeline = write_checkpoint(target, older_unet(), "quick_gelu", pndm_config(), END, 1)
    rename_like_2022(target)
    save_file(expected(pipeline), target / "expected.safetensors")


def write_newer(target: Path) -> None:
    pipeline = write_checkpoint(target, newer_unet(), "gelu", ddim_config(), "!", 2)
    keep_current_tokenizer_files(target)
    save_file(expected(pipeline), target / "expected.safetensors")


def write_xl(target: Path) -> None:
    save_file(expected_of_xl(write_xl_checkpoint(target)), target / "expected.safetensors")


def write_safety(target: Path) -> None:
    save_file(write_safety_checkpoint(target), target / "expected.safetensors")


def write_edits(target: Path) -> None:
    _write_of_each_checkpoint(edits, target)


def write_clip_skips(target: Path) -> None:
    _write_of_each_checkpoint(clip_skips, target)


def write_guidance_rescales(target: Path) -> None:
    _write_of_each_checkpoint(guidance_rescales, target)


def write_weighted_prompts(target: Path) -> None:
    if (community := os.environ.get("DIFFUSERS_COMMUNITY")) is None:
        print(f"{target} stays as it is: DIFFUSERS_COMMUNITY is not set")
        return
    file = Path(community) / "lpw_stable_diffusion.py"
    save_file(weighted_states(file, target.parent / "older"), target)


def _write_of_each_checkpoint(answers: Callable[[Path], Tensors], target: Path) -> None:
    tensors = {}
    for name in ("older", "newer", "xl"):
        for key, tensor in answers(target.parent / name).items():
            tensors[f"{name}|{key}"] = tensor
    save_file(tensors, target)


def write_samplers(target: Path) -> None:
    save_file(sampler_runs(), target)


def write_flow_samplers(target: Path) -> None:
    save_file(flow_runs(), target)


def write_qwen3(target: Path) -> None:
    save_file(qwen_states(), target)


def write_t5(target: Path) -> None:
    save_file(t5_states(), target)


def write_flux1(target: Path) -> None:
    save_file(flux1_answers(), target)


def write_known_flux1(target: Path) -> None:
    save_file(known_flux1_answers(), target)


def write_stable_diffusion_3(target: Path) -> None:
    save_file(stable_diffusion_3_answers(), target)


def write_known_stable_diffusion_3(target: Path) -> None:
    save_file(known_stable_diffusion_3_answers(), target)


def write_z_image(target: Path) -> None:
    save_file(z_image_answers(), target)


def write_flux2_klein(target: Path) -> None:
    save_file(flux2_klein_answers(), target)


def write_flux2_klein_references(target: Path) -> None:
    save_file(flux2_klein_references(), target)


def write_full_size(target: Path) -> None:
    target.write_text(json.dumps(full_size(), indent=1) + "\n", encoding="utf-8")


def write_known(target: Path) -> None:
    tensors, digests = known_answers()
    save_file(tensors, target)
    text = json.dumps(digests, indent=1) + "\n"
    target.with_suffix(".json").write_text(text, encoding="utf-8")


def write_ensemble(target: Path) -> None:
    save_file(ensemble_answers(), target)


def write_lora_files(target: Path) -> None:
    write_loras(target, target.parent)


def write_inversion_files(target: Path) -> None:
    write_inversions(target, target.parent)


def write_control_nets(target: Path) -> None:
    save_file(control_nets(target), target / "expected.safetensors")


def write_single_files(target: Path) -> None:
    text = json.dumps(converted_single_files(), indent=0) + "\n"
    target.write_text(text, encoding="utf-8")


PARTS = {
    "older": write_older,
    "newer": write_newer,
    "xl": write_xl,
    "safety": write_safety,
    "edits.safetensors": write_edits,
    "clip_skips.safetensors": write_clip_skips,
    "guidance_rescales.safetensors": write_guidance_rescales,
    "weighted_prompts.safetensors": write_weighted_prompts,
    "samplers.safetensors": write_samplers,
    "flow_samplers.safetensors": write_flow_samplers,
    "qwen3.safetensors": write_qwen3,
    "t5.safetensors": write_t5,
    "flux1.safetensors": write_flux1,
    "known_flux1.safetensors": write_known_flux1,
    "stable_diffusion_3.safetensors": write_stable_diffusion_3,
    "known_stable_diffusion_3.safetensors": write_known_stable_diffusion_3,
    "z_image.safetensors": write_z_image,
    "flux2_klein.safetensors": write_flux2_klein,
    "flux2_klein_references.safetensors": write_flux2_klein_references,
    "full_size.json": write_full_size,
    "known.safetensors": write_known,
    "ensemble.safetensors": write_ensemble,
    "single_files.json": write_single_files,
    "loras": write_lora_files,
    "inversions": write_inversion_files,
    "controlnets": write_control_nets,
    "outline.safetensors": write_outlines,
    "shapes_dit.safetensors": write_shapes_dit,
}


def main(target: Path, parts: list[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in parts or PARTS:
        if (target / name).is_dir():
            shutil.rmtree(target / name)
        PARTS[name](target / name)
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

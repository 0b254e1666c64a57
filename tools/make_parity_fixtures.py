"""Writes tests/fixtures/parity: tiny checkpoints and what PyTorch diffusers makes of them.

    python -m venv torchenv && torchenv/bin/pip install torch diffusers transformers safetensors
    torchenv/bin/python tools/make_parity_fixtures.py tests/fixtures/parity

Goes in: nothing but seeds. Comes out: two whole checkpoints (`older`, spelt like files of 2022, and
`newer`, like today's), each with `expected.safetensors`, and `samplers.safetensors`. The tests that
read them need no torch. Made with torch 2.13.0, diffusers 0.42.1 and transformers 5.23.0.
"""

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

Tensors = dict[str, torch.Tensor]

WORDS = ["a</w>", "red</w>", "circle</w>", "on</w>", "blue</w>"]
PROMPTS = ["a red circle on blue", "Zwölf  Bücher, 3 for €5!", ""]
SAMPLERS = {
    "ddim": DDIMScheduler,
    "pndm": PNDMScheduler,
    "euler": EulerDiscreteScheduler,
    "dpmsolver++": DPMSolverMultistepScheduler,
}
SIZE = 8
"""Latents are 8x8, pictures 32x32."""


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    older = write_checkpoint(target / "older", older_unet(), "quick_gelu", pndm_config(), 1)
    spell_like_2022(target / "older")
    newer = write_checkpoint(target / "newer", newer_unet(), "gelu", ddim_config(), 2)
    spell_like_today(target / "newer")
    for folder, pipeline in ((target / "older", older), (target / "newer", newer)):
        save_file(expected(pipeline), folder / "expected.safetensors")
    save_file(sampler_runs(), target / "samplers.safetensors")
    total = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {total / 1e6:.2f} MB")


def older_unet() -> UNet2DConditionModel:
    """Stable Diffusion 1.x's arrangement: convolutional projections, one number of heads."""
    return UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(16, 24),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
        cross_attention_dim=16,
        attention_head_dim=2,
    )


def newer_unet() -> UNet2DConditionModel:
    """Everything the older one does not have."""
    return UNet2DConditionModel(
        sample_size=SIZE,
        block_out_channels=(8, 16, 16),
        layers_per_block=(1, 2, 1),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=(1, 2, 4),
        transformer_layers_per_block=(1, 2, 1),
        use_linear_projection=True,
        flip_sin_to_cos=False,
        freq_shift=1,
    )


def pndm_config() -> PNDMScheduler:
    """Stable Diffusion 1.4's."""
    return PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        steps_offset=1,
    )


def ddim_config() -> DDIMScheduler:
    return DDIMScheduler(
        prediction_type="v_prediction", timestep_spacing="trailing", clip_sample=False
    )


def write_checkpoint(
    folder: Path,
    unet: UNet2DConditionModel,
    activation: str,
    scheduler: PNDMScheduler | DDIMScheduler,
    seed: int,
) -> StableDiffusionPipeline:
    """A pipeline whose weights are what its half-precision files hold."""
    tokenizer = make_tokenizer(folder / "tokenizer")
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            hidden_act=activation,
        )
    )
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(8, 8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        scaling_factor=0.5,
        sample_size=4 * SIZE,
    )
    generator = torch.Generator().manual_seed(seed)
    half = torch.float16 if seed == 1 else torch.bfloat16
    for network in (text, unet, vae):
        randomise(network, generator, half)
    # A random denoiser does not denoise; a loud one also makes rounding errors grow with each step.
    unet.conv_out.weight.data.mul_(0.125)
    pipeline = StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text.eval(),
        unet=unet.eval(),
        tokenizer=tokenizer,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    for file in folder.glob("*/*.safetensors"):
        rewrite(file, lambda key, tensor: {key: tensor.to(half)})
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def randomise(network: torch.nn.Module, generator: torch.Generator, half: torch.dtype) -> None:
    """Fresh networks have norms of one and biases of zero, which hide a swap."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.copy_((0.1 if name.endswith("bias") else 0.2) * noise)
                weight.add_(0 if name.endswith("bias") else 1)
            else:
                weight.copy_(noise * (weight[0].numel() ** -0.5 if weight.ndim > 1 else 1))
            weight.copy_(weight.to(half).float())


def make_tokenizer(folder: Path) -> CLIPTokenizer:
    """CLIP's byte-level BPE with a handful of words, as vocab.json and merges.txt."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    merges = []
    for word in WORDS:
        pieces = [*word.removesuffix("</w>")[:-1], word.removesuffix("</w>")[-1] + "</w>"]
        while len(pieces) > 1:
            merges.append((pieces[0], pieces[1]))
            pieces = [pieces[0] + pieces[1], *pieces[2:]]
    merges = list(dict.fromkeys(merges))
    tokens = [*letters, *(letter + "</w>" for letter in letters), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=77)


def rewrite(file: Path, change: Callable[[str, torch.Tensor], Tensors]) -> None:
    tensors: Tensors = {}
    for key, tensor in load_file(file).items():
        tensors |= change(key, tensor.contiguous())
    save_file(tensors, file)


def spell_like_2022(folder: Path) -> None:
    """Key names and tokenizer files as in CompVis/stable-diffusion-v1-4."""
    old = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}

    def vae(key: str, tensor: torch.Tensor) -> Tensors:
        for today, then in old.items():
            key = key.replace(f"attentions.0.{today}", f"attentions.0.{then}")
        return {key: tensor}

    rewrite(folder / "vae" / "diffusion_pytorch_model.safetensors", vae)
    text = folder / "text_encoder" / "model.safetensors"
    rewrite(text, lambda key, tensor: {f"text_model.{key.removeprefix('text_model.')}": tensor})
    positions = {"text_model.embeddings.position_ids": torch.arange(77)[None]}
    save_file(load_file(text) | positions, text)
    (folder / "tokenizer" / "tokenizer.json").unlink(missing_ok=True)


def spell_like_today(folder: Path) -> None:
    """What transformers 5 and diffusers 0.42 write: tokenizer.json alone."""
    for name in ("vocab.json", "merges.txt"):
        (folder / "tokenizer" / name).unlink()


@torch.no_grad()
def expected(pipeline: StableDiffusionPipeline) -> Tensors:
    """Inputs and outputs of every network, every block of the UNet, and whole pictures."""
    generator = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    tokens = pipeline.tokenizer(
        PROMPTS, padding="max_length", max_length=77, truncation=True, return_tensors="pt"
    ).input_ids
    text = pipeline.text_encoder(tokens)[0]
    latents, times = draw(2, 4, SIZE, SIZE), torch.tensor([1.0, 981.0])
    found = {"tokens": tokens.int(), "text": text, "unet.latents": latents, "unet.times": times}
    hooks = [
        block.register_forward_hook(recorder(found, name), with_kwargs=True)
        for name, block in pipeline.unet.named_modules()
        if name == "mid_block" or (name.count(".") == 1 and "_blocks." in name)
    ]
    found["unet.out"] = pipeline.unet(latents, times, text[:2]).sample
    for hook in hooks:
        hook.remove()
    pixels = draw(2, 3, 4 * SIZE, 4 * SIZE).clamp(-1, 1)
    moments = pipeline.vae.encode(pixels).latent_dist
    found |= {"vae.pixels": pipeline.vae.decode(latents).sample}
    found |= {"vae.in": pixels, "vae.mean": moments.mean, "vae.logvar": moments.logvar}
    config = dict(pipeline.scheduler.config) | {"clip_sample": False, "skip_prk_steps": True}
    for name, scheduler in SAMPLERS.items():
        pipeline.scheduler = scheduler.from_config(config)
        found[f"pictures.{name}"] = paint(pipeline, latents)
    return {key: tensor.clone().contiguous() for key, tensor in found.items()}


def recorder(found: Tensors, name: str) -> Callable[..., None]:
    """Keeps what goes into a block and what comes out."""

    def record(_module: object, _args: object, given: dict, out: object) -> None:
        found[f"{name}.time"] = given["temb"]
        found[f"{name}.x"] = given["hidden_states"]
        for index, skip in enumerate(given.get("res_hidden_states_tuple") or ()):
            found[f"{name}.skip.{index}"] = skip
        outputs = out[1] if isinstance(out, tuple) else (out,)
        for index, tensor in enumerate(outputs):
            found[f"{name}.out.{index}"] = tensor

    def of_mid(_module: object, args: tuple, given: dict, out: object) -> None:
        record(_module, (), {"hidden_states": args[0], "temb": args[1], **given}, out)

    return of_mid if name == "mid_block" else record


def paint(pipeline: StableDiffusionPipeline, latents: torch.Tensor) -> torch.Tensor:
    """uint8 `[2, H, W, 3]` after 6 steps at guidance 3, as the pipeline would save them."""
    pictures = pipeline(
        PROMPTS[:2],
        negative_prompt=["", "blue"],
        num_inference_steps=6,
        guidance_scale=3.0,
        latents=latents.clone(),
        output_type="np",
    ).images
    return torch.from_numpy((pictures * 255).round().astype(np.uint8))


def model(x: torch.Tensor, timestep: float) -> torch.Tensor:
    """Stands for a network in the samplers' runs; the tests have the same in numpy."""
    return torch.tanh(0.7 * x + 0.3 * torch.roll(x, 1, -1)) * (0.5 + timestep / 1000)


def sampler_runs() -> Tensors:
    """`sampler|prediction|spacing|steps|betas` to the samples after every call of the model."""
    start = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    runs = {"start": start}
    spacings, predictions = ("leading", "trailing", "linspace"), ("epsilon", "v_prediction")
    for case in itertools.product(SAMPLERS, predictions, spacings, (1, 2, 3, 8), ("sd",)):
        runs["|".join(map(str, case))] = run(*case, start)
    for prediction, steps in itertools.product(("sample", "v_prediction"), (5, 50)):
        case = ("ddim", prediction, "trailing", steps, "linear")
        runs["|".join(map(str, case))] = run(*case, start)
    for name in ("ddim", "euler", "dpmsolver++"):
        case = (name, "v_prediction", "trailing", 7, "zero")
        runs["|".join(map(str, case))] = run(*case, start)
    case = ("ddim", "epsilon", "leading", 10, "cosine")
    runs["|".join(map(str, case))] = run(*case, start)
    return runs


BETAS = {
    "sd": {
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "steps_offset": 1,
        "set_alpha_to_one": False,
    },
    "linear": {},
    "zero": {"rescale_betas_zero_snr": True},
    "cosine": {"beta_schedule": "squaredcos_cap_v2"},
}


def run(
    name: str, prediction: str, spacing: str, steps: int, betas: str, start: torch.Tensor
) -> torch.Tensor:
    """Samples as the model sees them, `[calls, 1, 4, 4, 4]`; the last as the decoder does."""
    config = {"prediction_type": prediction, "timestep_spacing": spacing, "clip_sample": False}
    config |= {"skip_prk_steps": True, **BETAS[betas]}
    scheduler = SAMPLERS[name].from_config(config)
    scheduler.set_timesteps(steps)
    x, seen = start * scheduler.init_noise_sigma, []
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(x, timestep)
        seen.append(scaled)
        x = scheduler.step(model(scaled, float(timestep)), timestep, x).prev_sample
    return torch.stack([*seen[1:], x])


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Cases with a name: what was once generated otherwise than by diffusers, or refused without need.

Each is the checkpoint to start from and the change.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tools.parity.fuzz.draft import INDEX, REMOVED, SCHEDULER, TEXT, UNET, VAE, Draft, Tensors
from tools.parity.fuzz.draw_files import LAYOUTS, store_as
from tools.parity.fuzz.draw_single_file import to_single_file
from tools.parity.fuzz.draw_tokenizer import grow_embedding, write_tokens

UNET_CONFIG, VAE_CONFIG = "unet/config.json", "vae/config.json"
TEXT_CONFIG = "text_encoder/config.json"
Change = Callable[[Draft], None]


def _edit(file: str, **fields: object) -> Change:
    return lambda draft: draft.edit(file, **fields)


def _negatives(value: object, negatives: list[str] | None) -> Change:
    """Set `force_zeros_for_empty_prompt`, and ask with these negative prompts."""

    def change(draft: Draft) -> None:
        draft.edit(INDEX, force_zeros_for_empty_prompt=value)
        draft.job.negative_prompts = negatives

    return change


def _scheduler(name: str, job: str | None = None, **fields: object) -> Change:
    """Name a class in model_index.json, and let the job name a scheduler."""

    def change(draft: Draft) -> None:
        draft.edit(INDEX, scheduler=["diffusers", name])
        draft.edit(SCHEDULER, **fields)
        draft.job.scheduler = job

    return change


def _tokens(form: str, *tokens: str) -> Change:
    """Add tokens and their embeddings, as a textual inversion that was saved."""

    def change(draft: Draft) -> None:
        write_tokens(draft, tokens, form, normalized=True)
        for encoder in draft.text_encoders:
            grow_embedding(draft, encoder, len(tokens))
        draft.job.prompts = [f"a {tokens[0]} on red", f"blue {tokens[-1]}, {tokens[0]}!"]

    return change


def _layout(kind: str, file: str) -> Change:
    return lambda draft: LAYOUTS[kind](draft, file)


def _dtype(dtype: str) -> Change:
    """Store the weights of all networks in another dtype."""

    def change(draft: Draft) -> None:
        for file in (UNET, VAE, TEXT):
            store_as(draft.folder / file, dtype)

    return change


def _both_project(draft: Draft) -> None:
    """Give the first text encoder a projection, too."""
    draft.edit(INDEX, text_encoder=["transformers", "CLIPTextModelWithProjection"])
    weight = np.random.RandomState(1).standard_normal((12, 16)).astype(np.float16)
    draft.tensors(TEXT, lambda tensors: tensors.update({"text_projection.weight": weight}))


def _length(length: object) -> Change:
    def change(draft: Draft) -> None:
        for folder in draft.tokenizers:
            draft.edit(f"{folder}/tokenizer_config.json", model_max_length=length)
        draft.job.prompts = ["a red circle on blue " * 5, "a circle"]

    return change


def _native(size: object) -> Change:
    def change(draft: Draft) -> None:
        draft.edit(UNET_CONFIG, sample_size=size)
        draft.job.side = None

    return change


def _one_step_of_deis(draft: Draft) -> None:
    _scheduler("DEISMultistepScheduler", use_karras_sigmas=True)(draft)
    draft.job.steps = 1


def _single_file(kind: str, **fields: object) -> Change:
    """Put the weights into one file with these markers, and set fields of its scheduler."""

    def change(draft: Draft) -> None:
        to_single_file(draft, kind)
        draft.edit(SCHEDULER, **fields)

    return change


def _no_transformer_layers(draft: Draft) -> None:
    draft.edit(UNET_CONFIG, transformer_layers_per_block=0)

    def remove(tensors: Tensors) -> None:
        for key in [key for key in tensors if ".transformer_blocks." in key]:
            del tensors[key]

    draft.tensors(UNET, remove)


def _other_ids(draft: Draft) -> None:
    """Let tokenizer.json have other ids than vocab.json."""
    fast = draft.read("tokenizer/tokenizer.json")
    words: dict[str, Any] = fast["model"]["vocab"]
    words["red</w>"], words["blue</w>"] = words["blue</w>"], words["red</w>"]
    draft.write("tokenizer/tokenizer.json", fast)
    draft.job.prompts = ["red " * 20, "a blue " * 20]
    draft.job.guidance = 7.5


NAMED_CASES: dict[str, tuple[str, Change]] = {
    "1 no force_zeros": ("xl", _negatives(REMOVED, None)),
    "1 force_zeros is false": ("xl", _negatives(False, None)),
    "1 force_zeros of no SDXL": ("older", _negatives(True, None)),
    "2 index Euler, file DDIM": (
        "older",
        _scheduler("EulerDiscreteScheduler", _class_name="DDIMScheduler"),
    ),
    "2 index DPM-Solver, file Euler": ("xl", _scheduler("DPMSolverMultistepScheduler")),
    "2 SD sets steps_offset": ("older", _scheduler("DDIMScheduler", steps_offset=0)),
    "2 SD clips no samples": ("older", _scheduler("DDIMScheduler", clip_sample=True)),
    "2 SDXL keeps both": ("xl", _scheduler("DDIMScheduler", steps_offset=0, clip_sample=True)),
    "2 DDIM has no clip_sample, LCM chosen": (
        "xl",
        _scheduler("DDIMScheduler", "lcm", clip_sample=REMOVED),
    ),
    "2 DDPM has no clip_sample, DDIM chosen": (
        "xl",
        _scheduler("DDPMScheduler", "ddim", clip_sample=REMOVED),
    ),
    "2 no skip_prk_steps, PNDM chosen": (
        "xl",
        _scheduler("EulerDiscreteScheduler", "pndm", skip_prk_steps=REMOVED),
    ),
    "2 Euler reads no thresholding": (
        "xl",
        _scheduler("EulerDiscreteScheduler", thresholding=True, use_lu_lambdas=True),
    ),
    "2 LMS reads sigma_max with Karras": (
        "xl",
        _scheduler("LMSDiscreteScheduler", sigma_max=10.0, use_karras_sigmas=True),
    ),
    "2 LMS reads no sigma_max": ("xl", _scheduler("LMSDiscreteScheduler", sigma_max=10.0)),
    "2 UniPC replaces heun, DPM-Solver chosen": (
        "xl",
        _scheduler("UniPCMultistepScheduler", "dpmsolver++", solver_type="heun"),
    ),
    "2 a single step of DEIS with Karras": ("xl", _one_step_of_deis),
    "3 added_tokens.json": ("older", _tokens("added_tokens.json", "<cat>")),
    "3 added_tokens_decoder": ("newer", _tokens("added_tokens_decoder", "<cat>")),
    "3 tokenizer.json": ("newer", _tokens("tokenizer.json", "<cat>")),
    "3 several vectors": (
        "older",
        _tokens("added_tokens.json", "<cat>", "<cat>_1", "<cat>_2"),
    ),
    "3 several vectors in SDXL": ("xl", _tokens("tokenizer.json", "<cat>", "<cat>_1")),
    "3 other ids in tokenizer.json": ("xl", _other_ids),
    "4 an empty negative prompt": ("xl", _negatives(True, ["", ""])),
    "4 a blank negative prompt": ("xl", _negatives(True, [" ", " "])),
    "5 shards": ("older", _layout("shards", UNET)),
    "5 shards and a whole UNet": ("older", _layout("shards beside another whole file", UNET)),
    "5 shards and a whole text encoder": (
        "older",
        _layout("shards beside another whole file", TEXT),
    ),
    "5 two sets of shards": ("newer", _layout("two sets of shards", VAE)),
    "5 shards with names of 2022": ("older", _layout("shards", VAE)),
    "5 half precision for all": ("older", _layout("other weights in half precision", VAE)),
    "6 use_attention_mask": ("older", _edit(TEXT_CONFIG, use_attention_mask=True)),
    "7 both encoders project": ("xl", _both_project),
    "8 another eos_token_id": ("xl", _edit("text_encoder_2/config.json", eos_token_id=5)),
    "9 a shorter model_max_length": ("older", _length(20)),
    "9 a shorter model_max_length in SDXL": ("xl", _length(10)),
    "9 a longer model_max_length": ("older", _length(100)),
    "10 both names": ("older", _layout("both names", TEXT)),
    "10 both names of the UNet": ("newer", _layout("both names", UNET)),
    "11 UNetMotionModel": ("older", _edit(INDEX, unet=["diffusers", "UNetMotionModel"])),
    "11 the text encoder projects": (
        "older",
        _edit(INDEX, text_encoder=["transformers", "CLIPTextModelWithProjection"]),
    ),
    "11 architectures have no effect": (
        "older",
        _edit(TEXT_CONFIG, architectures=["CLIPTextModelWithProjection"]),
    ),
    "12 DDPM": ("older", _scheduler("DDPMScheduler")),
    "12 DDPM, DDIM chosen": ("older", _scheduler("DDPMScheduler", "ddim")),
    "12 UniPC, DPM-Solver chosen": ("xl", _scheduler("UniPCMultistepScheduler", "dpmsolver++")),
    "12 Heun, Euler chosen": ("newer", _scheduler("HeunDiscreteScheduler", "euler")),
    "13 v_pred": ("xl", _single_file("v_pred", prediction_type="v_prediction")),
    "13 v_pred without such a scheduler": (
        "xl",
        _single_file("v_pred", prediction_type="epsilon"),
    ),
    "13 v_pred and ztsnr": (
        "xl",
        _single_file(
            "v_pred and ztsnr", prediction_type="v_prediction", rescale_betas_zero_snr=True
        ),
    ),
    "weights in F64": ("newer", _dtype("F64")),
    "weights in F8_E4M3": ("older", _dtype("F8_E4M3")),
    "weights in F8_E5M2": ("newer", _dtype("F8_E5M2")),
    "no transformer layers": ("older", _no_transformer_layers),
    "only_cross_attention at no level": (
        "older",
        _edit(UNET_CONFIG, only_cross_attention=[False, False]),
    ),
    "no cross-attention alone in the middle": (
        "older",
        _edit(UNET_CONFIG, mid_block_only_cross_attention=False),
    ),
    "a shift_factor of 0": ("older", _edit(VAE_CONFIG, shift_factor=0.0)),
    "swish": ("older", _edit(UNET_CONFIG, act_fn="swish")),
    "swish in the autoencoder": ("older", _edit(VAE_CONFIG, act_fn="swish")),
    "a pair as sample_size": ("older", _native([8, 10])),
    "no sample_size": ("older", _edit(UNET_CONFIG, sample_size=None)),
}
"""By name. The number is the row of the table in docs/models.md that the case belongs to."""

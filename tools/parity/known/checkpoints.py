"""Well-known checkpoints by name: the parts of each, as its files have them, but tiny.

docs/models.md lists the same names, and says of each whether it loads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tools.parity.known import structures as s

SD, XL, LCM = (
    "StableDiffusionPipeline",
    "StableDiffusionXLPipeline",
    "LatentConsistencyModelPipeline",
)


@dataclass(frozen=True, kw_only=True)
class KnownCheckpoint:
    """The configs of one checkpoint."""

    pipeline: str
    scheduler: str
    """Its class."""
    scheduler_fields: s.Fields
    unet: s.Fields
    vae: s.Fields
    text_encoders: Mapping[str, tuple[str, s.Fields]]
    """By folder: class and config."""
    index: s.Fields = field(default_factory=dict)
    """Further fields of model_index.json."""
    half_only: bool = False
    """Whether all its weights end in `.fp16`."""
    sharded: bool = False
    """Whether its UNet is in shards with an index."""
    refused: str = ""
    """A part of the sentence that refuses it. Empty: it loads."""


def _sd1(
    scheduler: str, fields: s.Fields, unet: s.Fields | None = None, **more: Any
) -> KnownCheckpoint:
    parts: dict[str, Any] = {
        "pipeline": SD,
        "unet": {**s.SD1_UNET, **(unet or {})},
        "vae": s.VAE,
        "text_encoders": {"text_encoder": ("CLIPTextModel", s.SD1_TEXT)},
    }
    return KnownCheckpoint(scheduler=scheduler, scheduler_fields=fields, **parts | more)


def _sd2(
    scheduler: str, fields: s.Fields, unet: s.Fields | None = None, **more: Any
) -> KnownCheckpoint:
    text = {"text_encoder": ("CLIPTextModel", s.SD2_TEXT)}
    parts: dict[str, Any] = {"unet": {**s.SD2_UNET, **(unet or {})}, "text_encoders": text}
    return _sd1(scheduler, fields, **parts | more)


def _xl(
    scheduler: str, fields: s.Fields, unet: s.Fields | None = None, **more: Any
) -> KnownCheckpoint:
    parts: dict[str, Any] = {
        "pipeline": XL,
        "unet": {**s.XL_UNET, **(unet or {})},
        "vae": s.XL_VAE,
        "text_encoders": {
            "text_encoder": ("CLIPTextModel", s.SD1_TEXT),
            "text_encoder_2": ("CLIPTextModelWithProjection", s.XL_SECOND_TEXT),
        },
        "index": {"force_zeros_for_empty_prompt": True},
    }
    return KnownCheckpoint(scheduler=scheduler, scheduler_fields=fields, **parts | more)


def _other(pipeline: str) -> KnownCheckpoint:
    """Return a checkpoint of a pipeline that is refused by its name, before any part is read."""
    return _sd1("DDIMScheduler", s.DDIM, pipeline=pipeline, refused=f"_class_name is '{pipeline}'")


_PNDM = ("PNDMScheduler", s.PNDM)
_DDIM = ("DDIMScheduler", s.DDIM)
_DEIS = ("DEISMultistepScheduler", s.DEIS)
_EULER = ("EulerDiscreteScheduler", s.LEADING)
_EULER_TRAILING = ("EulerDiscreteScheduler", s.TRAILING)
_ANCESTRAL = ("EulerAncestralDiscreteScheduler", s.LEADING)
_DPM_KARRAS = ("DPMSolverMultistepScheduler", s.KARRAS)

KNOWN: Final[Mapping[str, KnownCheckpoint]] = {
    # Stable Diffusion 1
    "CompVis/stable-diffusion-v1-4": _sd1(*_PNDM),
    "stable-diffusion-v1-5/stable-diffusion-v1-5": _sd1(*_PNDM),
    "prompthero/openjourney": _sd1(*_PNDM),
    "nitrosocke/Ghibli-Diffusion": _sd1(*_PNDM),
    "hakurei/waifu-diffusion": _sd1(*_DDIM),
    "dreamlike-art/dreamlike-photoreal-2.0": _sd1(*_DDIM),
    "SG161222/Realistic_Vision_V5.1_noVAE": _sd1(*_PNDM),
    "emilianJR/epiCRealism": _sd1(*_PNDM),
    "Lykon/DreamShaper": _sd1(*_DEIS),
    "Lykon/dreamshaper-7": _sd1(*_DEIS),
    "Lykon/dreamshaper-8": _sd1(*_DEIS),
    "Lykon/AnyLoRA": _sd1(*_DEIS),
    "Lykon/absolute-reality-1.81": _sd1(*_DEIS),
    "stablediffusionapi/anything-v5": _sd1("UniPCMultistepScheduler", s.UNIPC),
    "WarriorMama777/OrangeMixs": _sd1("LMSDiscreteScheduler", s.SD_BETAS),
    "SimianLuo/LCM_Dreamshaper_v7": _sd1(
        "LCMScheduler", s.LCM, {"time_cond_proj_dim": 8}, pipeline=LCM
    ),
    "nota-ai/bk-sdm-base": _sd1(*_PNDM, s.ONE_LAYER),
    "nota-ai/bk-sdm-small": _sd1(*_PNDM, s.NO_MID_BLOCK),
    "nota-ai/bk-sdm-tiny": _sd1(*_PNDM, {**s.THREE_LEVELS, "block_out_channels": [8, 16, 16]}),
    "segmind/small-sd": _sd1("DPMSolverMultistepScheduler", s.SD_BETAS, s.NO_MID_BLOCK),
    "segmind/tiny-sd": _sd1(
        "DPMSolverMultistepScheduler",
        s.SD_BETAS,
        {**s.THREE_LEVELS, "block_out_channels": [8, 16, 16]},
    ),
    "runwayml/stable-diffusion-inpainting": _sd1(
        *_DDIM,
        {"in_channels": 9},
        pipeline="StableDiffusionInpaintPipeline",
    ),
    "timbrooks/instruct-pix2pix": _sd1(
        *_ANCESTRAL, {"in_channels": 8}, pipeline="StableDiffusionInstructPix2PixPipeline"
    ),
    "lambdalabs/sd-image-variations-diffusers": _other("StableDiffusionImageVariationPipeline"),
    # Stable Diffusion 2
    "stabilityai/stable-diffusion-2-1-base": _sd2(*_PNDM),
    "stabilityai/stable-diffusion-2-1": _sd2("DDIMScheduler", s.V_PREDICTION),
    "stabilityai/stable-diffusion-2": _sd2("EulerDiscreteScheduler", s.V_PREDICTION),
    "stabilityai/sd-turbo": _sd2(*_EULER_TRAILING, half_only=True),
    "nota-ai/bk-sdm-v2-base": _sd2(*_PNDM, s.ONE_LAYER),
    "nota-ai/bk-sdm-v2-small": _sd2(*_PNDM, s.NO_MID_BLOCK),
    "nota-ai/bk-sdm-v2-tiny": _sd2(
        *_PNDM,
        {
            **s.THREE_LEVELS,
            "block_out_channels": [20, 20, 20],
            "attention_head_dim": [5, 10, 20],
        },
    ),
    "stabilityai/stable-diffusion-2-inpainting": _sd2(
        *_PNDM, {"in_channels": 9}, pipeline="StableDiffusionInpaintPipeline"
    ),
    "stabilityai/stable-diffusion-2-depth": _other("StableDiffusionDepth2ImgPipeline"),
    "stabilityai/stable-diffusion-x4-upscaler": _other("StableDiffusionUpscalePipeline"),
    "stabilityai/stable-diffusion-2-1-unclip": _other("StableUnCLIPImg2ImgPipeline"),
    # SDXL
    "stabilityai/stable-diffusion-xl-base-1.0": _xl(*_EULER),
    "SG161222/RealVisXL_V4.0": _xl(*_EULER, half_only=True),
    "RunDiffusion/Juggernaut-XL-v9": _xl(*_DPM_KARRAS),
    "cagliostrolab/animagine-xl-3.1": _xl(*_ANCESTRAL),
    "Lykon/dreamshaper-xl-1-0": _xl(*_DEIS),
    "Lykon/dreamshaper-xl-lightning": _xl("DPMSolverMultistepScheduler", s.TRAILING),
    "stabilityai/sdxl-turbo": _xl("EulerAncestralDiscreteScheduler", s.TRAILING),
    "ByteDance/SDXL-Lightning (its UNet in SDXL)": _xl(*_EULER_TRAILING),
    "ByteDance/Hyper-SD (its UNet in SDXL)": _xl("LCMScheduler", s.LCM),
    "latent-consistency/lcm-sdxl (its UNet in SDXL)": _xl(
        "LCMScheduler", s.LCM, {"time_cond_proj_dim": 8}
    ),
    "playgroundai/playground-v2-1024px-aesthetic": _xl(*_EULER, sharded=True),
    "playgroundai/playground-v2.5-1024px-aesthetic": _xl(
        "EDMDPMSolverMultistepScheduler", s.EDM, vae=s.PLAYGROUND_VAE
    ),
    "segmind/SSD-1B": _xl(*_EULER, s.SSD_1B),
    "segmind/Segmind-Vega": _xl(*_EULER, s.VEGA),
    "etri-vilab/koala-700m": _xl(*_EULER, s.KOALA_700M),
    "etri-vilab/koala-1b": _xl(*_EULER, s.KOALA_1B),
    "stabilityai/stable-diffusion-xl-refiner-1.0": _xl(
        *_EULER,
        s.REFINER,
        pipeline="StableDiffusionXLImg2ImgPipeline",
        text_encoders={"text_encoder_2": ("CLIPTextModelWithProjection", s.XL_SECOND_TEXT)},
        index={
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
            "text_encoder": [None, None],
            "tokenizer": [None, None],
        },
    ),
    "diffusers/stable-diffusion-xl-1.0-inpainting-0.1": _xl(
        *_EULER, {"in_channels": 9}, pipeline="StableDiffusionXLInpaintPipeline"
    ),
    "diffusers/sdxl-instructpix2pix-768": _xl(
        *_EULER, {"in_channels": 8}, pipeline="StableDiffusionXLInstructPix2PixPipeline"
    ),
    # Others
    "PixArt-alpha/PixArt-XL-2-1024-MS": _other("PixArtAlphaPipeline"),
    "Kwai-Kolors/Kolors-diffusers": _other("KolorsPipeline"),
    "DeepFloyd/IF-I-XL-v1.0": _other("IFPipeline"),
    "stabilityai/stable-video-diffusion-img2vid": _other("StableVideoDiffusionPipeline"),
}

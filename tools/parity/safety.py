"""A tiny safety checker, and PyTorch's results with it.

Input: a folder. Output: the checker's two folders there, with the key names of 2022, and named
tensors: images, their preprocessed pixels and embeddings, and whether each is flagged.
"""

from pathlib import Path

import torch
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from diffusers.pipelines.stable_diffusion.safety_checker import cosine_distance
from safetensors.torch import load_file, save_file
from torch.nn.functional import interpolate
from transformers import CLIPConfig, CLIPImageProcessorPil

from tools.parity.checkpoints import Tensors, randomise, rewrite

EDGE, WIDTH = 32, 12
HALF = torch.float16
UNREACHABLE = 2.0
"""A threshold above every cosine."""


def checker(pixels: torch.Tensor) -> StableDiffusionSafetyChecker:
    """Return a checker whose thresholds suit these preprocessed images.

    One image matches a concept outright, one matches only by the special-care bonus, and one misses
    its concept by as little.
    """
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": EDGE,
        "patch_size": 8,
    }
    model = StableDiffusionSafetyChecker(CLIPConfig(vision_config=vision, projection_dim=WIDTH))
    randomise(model.eval(), torch.Generator().manual_seed(5), HALF)
    states = model.visual_projection(model.vision_model(pixels)[1])
    concepts = cosine_distance(states, model.concept_embeds)
    special = cosine_distance(states, model.special_care_embeds)
    model.concept_embeds_weights.fill_(UNREACHABLE)
    model.special_care_embeds_weights.fill_(UNREACHABLE)
    # Only the image that is nearest to the first special-care concept matches it.
    special_image = int(special[:, 0].argmax())
    model.special_care_embeds_weights[0] = special[special_image, 0] - 0.02
    # One image matches a concept outright. Two others miss theirs by a little, of which the bonus
    # lifts `special_image` over the threshold.
    order = [at for at in concepts[:, 0].argsort(descending=True).tolist() if at != special_image]
    outright, missed = order[0], order[1]
    model.concept_embeds_weights[0] = concepts[outright, 0] - 0.004
    for at, concept in ((special_image, 1), (missed, 2)):
        model.concept_embeds[concept] += 8 * states[at] / states[at].norm()
        nearest = cosine_distance(states, model.concept_embeds)[at, concept]
        model.concept_embeds_weights[concept] = nearest + 0.005
    for weights in (model.concept_embeds, *model.parameters()):
        weights.copy_(weights.to(HALF).float())
    return model


@torch.no_grad()
def write_safety_checkpoint(folder: Path) -> Tensors:
    """Write the checker's folders; return images and PyTorch's results."""
    generator = torch.Generator().manual_seed(6)
    coarse = torch.rand(8, 3, 5, 6, generator=generator)
    smooth = interpolate(coarse, size=(40, 48), mode="bicubic").clamp(0, 1)
    images = (smooth * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": EDGE}, crop_size={"height": EDGE, "width": EDGE}
    )
    prepared = processor(list(images.numpy()), return_tensors="pt").pixel_values
    model = checker(prepared)
    embeds = model.visual_projection(model.vision_model(prepared)[1])
    _, flagged = model(prepared, [torch.zeros(1)] * len(images))
    model.save_pretrained(folder / "safety_checker")
    processor.save_pretrained(folder / "feature_extractor")
    file = folder / "safety_checker" / "model.safetensors"
    rewrite(file, lambda key, tensor: {_key_of_2022(key): tensor.to(HALF)})
    positions = torch.arange((EDGE // 8) ** 2 + 1)[None]
    save_file(
        load_file(file) | {"vision_model.vision_model.embeddings.position_ids": positions}, file
    )
    return {
        "pictures": images,
        "prepared": prepared.contiguous(),
        "embeds": embeds,
        "flagged": torch.tensor(flagged),
    }


def _key_of_2022(key: str) -> str:
    return f"vision_model.{key}" if key.startswith("vision_model.") else key

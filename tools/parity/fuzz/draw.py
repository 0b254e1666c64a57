"""Draw checkpoints: from a seed, or one of the named cases.

Input: a folder and the name of a case. Output: the changed checkpoint there. This module needs
neither torch nor JAX, so a test can write the same files again.
"""

from pathlib import Path
from random import Random
from typing import Final

from safetensors import SafetensorError

from tools.parity.fuzz import (
    draw_configs,
    draw_files,
    draw_loras,
    draw_schedulers,
    draw_single_file,
    draw_tokenizer,
)
from tools.parity.fuzz.draft import BASES, Draft
from tools.parity.fuzz.draw_flux1 import draw_flux1
from tools.parity.fuzz.draw_flux2_klein import draw_flux2_klein
from tools.parity.fuzz.draw_stable_diffusion_3 import draw_stable_diffusion_3
from tools.parity.fuzz.draw_z_image import draw_z_image
from tools.parity.fuzz.named_cases import NAMED_CASES

Z_IMAGE, FLUX2_KLEIN, FLUX1, STABLE_DIFFUSION_3 = "z", "k", "f", "s"
"""Before its seed, one of these names a case of Z-Image, FLUX.2 klein, FLUX.1 or Stable Diffusion
3."""
_OF_FLOW: Final = {
    Z_IMAGE: draw_z_image,
    FLUX2_KLEIN: draw_flux2_klein,
    FLUX1: draw_flux1,
    STABLE_DIFFUSION_3: draw_stable_diffusion_3,
}

CHANGES = (
    (draw_schedulers.change_scheduler, 30),
    (draw_schedulers.choose_scheduler, 8),
    (draw_tokenizer.change_tokenizer_config, 10),
    (draw_tokenizer.change_special_tokens_map, 4),
    (draw_tokenizer.change_files, 6),
    (draw_tokenizer.add_tokens, 14),
    (draw_configs.change_class, 8),
    (draw_configs.change_index, 8),
    (draw_configs.change_network_config, 12),
    (draw_configs.change_structure, 4),
    (draw_files.change_layout, 16),
    (draw_files.damage, 10),
    (draw_loras.change_loras, 14),
    (draw_single_file.change_to_single_file, 8),
)
"""Kinds of changes and how often each is drawn."""
NEGATIVES = (None, None, ["", ""], [" ", "blue"], ["red", "blue"])
CLIP_SKIPS = (None, None, None, 1, 2)
"""The small text encoders have two layers, or three."""
GUIDANCE_RESCALES = (0.0, 0.0, 0.0, 0.3, 0.7, 1.0)


def draw(folder: Path, case: str) -> Draft:
    """Write the checkpoint of a case.

    Args:
        folder: It must not exist.
        case: A name in `NAMED_CASES`, or a number, which is a seed. `z17` is one of Z-Image, `k17`
            of FLUX.2 klein, `f17` of FLUX.1, `s17` of Stable Diffusion 3.
    """
    if case in NAMED_CASES:
        base, change = NAMED_CASES[case]
        draft = Draft.copy(folder, base, Random(0))
        change(draft)
        return draft
    if draw_flow := _OF_FLOW.get(case[0]):
        return draw_flow(folder, int(case[1:]))
    random = Random(int(case))
    draft = Draft.copy(folder, random.choice(BASES), random)
    draft.job.guidance = random.choice([3.0, 3.0, 7.5, 1.0])
    draft.job.steps = random.choice([1, 2, 3, 3, 4])
    draft.job.negative_prompts = random.choice(NEGATIVES)
    kinds = [change for change, weight in CHANGES for _ in range(weight)]
    for change in dict.fromkeys(
        random.choice(kinds) for _ in range(random.choice([1, 1, 1, 2, 3]))
    ):
        try:
            change(draft)
        except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
            # The change before it has removed what this one would change.
            draft.note(f"{change.__name__} was impossible: {type(error).__name__}")
    draft.job.clip_skip = random.choice(CLIP_SKIPS)
    draft.job.guidance_rescale = random.choice(GUIDANCE_RESCALES)
    return draft

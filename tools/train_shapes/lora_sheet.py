"""Write the sheet of docs/lora.md: `python -m tools.train_shapes.lora_sheet docs/lora.png`.

Each column is one prompt and seed, each row one scale of the LoRA. All images come from one batch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from tools.train_shapes.image_folder import CaptionedImage, contact_sheet
from tools.train_shapes.outlines import LORA_FILE
from tools.train_shapes.scenes import ImageArray

PROMPTS = [
    "a large yellow star in the center on a purple background",
    "a large red circle on the left on a blue background",
    "a large white square in the center on a red background",
    "a large blue heart on the right on a white background",
    "a large green triangle in the center on a pink background",
]
SCALES = [0.0, 0.5, 1.0]


def generate(cache: Path) -> list[list[ImageArray]]:
    """Return the images by scale and prompt. All are one batch."""
    engine = load_engine(
        "shapes",
        devices=1,
        per_device_batch=len(PROMPTS) * len(SCALES),
        cache_dir=cache,
        options=ModelOptions(job_loras=(LoraOption(name="outline", path=str(LORA_FILE)),)),
    )
    engine.warm()
    info = engine.info
    specs = [
        ImageSpec(
            prompt=prompt,
            seed=seed,
            num_inference_steps=info.default_num_inference_steps,
            guidance_scale=info.default_guidance_scale,
            scheduler=info.default_scheduler,
            loras=(("outline", scale),),
        )
        for scale in SCALES
        for seed, prompt in enumerate(PROMPTS)
    ]
    images = list(engine.start_batch(specs, info.shapes[0]).images())
    return [images[start : start + len(PROMPTS)] for start in range(0, len(specs), len(PROMPTS))]


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        rows = generate(Path(cache))
    captioned = [
        CaptionedImage(prompt=f"outline:{scale:g} {prompt}", image=image)
        for scale, row in zip(SCALES, rows, strict=True)
        for prompt, image in zip(PROMPTS, row, strict=True)
    ]
    contact_sheet(captioned, columns=len(PROMPTS)).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

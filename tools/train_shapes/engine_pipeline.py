"""The worker's own engine, without queue or storage around it.

Goes in: prompts and seeds. Comes out: pictures. Knows nothing of scenes or of judging.
"""

from __future__ import annotations

from pathlib import Path

from imagefleet.worker.engine.interface import ImageSpec
from imagefleet.worker.engine.load import load_engine
from tools.train_shapes.scenes import ImageArray


class EnginePipeline:
    """One device of this host, pictures in batches."""

    def __init__(self, model: str, *, batch: int, cache: Path) -> None:
        self._engine = load_engine(model, per_device_batch=batch, devices=1, cache_dir=cache)
        self._engine.warm()

    def draw(
        self, prompts: list[str], *, first_seed: int, guidance: float | None, steps: int | None
    ) -> list[ImageArray]:
        """One picture a prompt, uint8 (64, 64, 3); seeds count up from the first."""
        info = self._engine.info
        specs = [
            ImageSpec(
                prompt=prompt,
                seed=first_seed + index,
                num_inference_steps=steps or info.default_num_inference_steps,
                guidance_scale=info.default_guidance_scale if guidance is None else guidance,
                scheduler=info.default_scheduler,
            )
            for index, prompt in enumerate(prompts)
        ]
        rendering = self._engine.render(specs, info.shapes[0])
        for _ in rendering:
            pass
        return list(rendering.pictures())

"""The worker's engine without queue and storage. Input: prompts and seeds. Output: images."""

from __future__ import annotations

from pathlib import Path

from imagefleet.worker.engine.contract.interface import ImageSpec
from imagefleet.worker.engine.loading.load_engine import load_engine
from tools.train_shapes.scenes import ImageArray


class EnginePipeline:
    """The engine on one device of this host."""

    def __init__(self, model: str, *, batch: int, cache: Path) -> None:
        self._engine = load_engine(model, per_device_batch=batch, devices=1, cache_dir=cache)
        self._engine.warm()

    def draw(
        self, prompts: list[str], *, first_seed: int, guidance: float | None, steps: int | None
    ) -> list[ImageArray]:
        """Generate one image per prompt, uint8 (64, 64, 3). Seeds count up from `first_seed`."""
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
        running_batch = self._engine.start_batch(specs, info.shapes[0])
        for _ in running_batch:
            pass
        return list(running_batch.images())

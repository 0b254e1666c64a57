"""The peer with this project's engine. It writes the noise that the other peers start from."""

import os
from collections.abc import Sequence

import numpy as np

from benchmarks.race.peer import RaceConfig, serve
from imagefleet.worker.engine.contract.interface import ImageArrays, ImageSpec, Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine


def main() -> None:
    config = RaceConfig.from_argument()
    engine = load_engine(
        str(config.checkpoint),
        devices=config.devices,
        per_device_batch=config.batch // config.devices,
        cache_dir=config.noise.parent / "cache",
        max_num_inference_steps=config.max_steps,
        shapes=[Shape(height=config.side, width=config.side)] if config.side else None,
    )
    assert isinstance(engine, DiffusionEngine)
    engine.warm()
    shape, prompts = engine.info.shapes[0], config.prompts()
    _write_noise(config, engine._empty_batch.init_latents(shape).latents.shape[1:])

    def generate(steps: Sequence[int]) -> ImageArrays:
        specs = [
            ImageSpec(
                prompt=prompts[seed],
                seed=seed,
                num_inference_steps=count,
                guidance_scale=config.guidance,
                scheduler=engine.info.default_scheduler,
            )
            for seed, count in enumerate(steps)
        ]
        return engine.start_batch(specs, shape).images()

    serve(generate)


def _write_noise(config: RaceConfig, size: tuple[int, ...]) -> None:
    import jax.numpy as jnp

    from imagefleet.worker.engine.sampling.noise import NoiseUse, fold_in, normal

    keys = jnp.array([(0, seed) for seed in range(config.batch)], np.uint32)
    of_first_image = jnp.full(config.batch, NoiseUse.START, np.uint32)
    noise = normal(fold_in(keys, of_first_image), size)
    partial = config.noise.with_suffix(".part.npy")
    np.save(partial, np.asarray(noise))
    os.replace(partial, config.noise)


if __name__ == "__main__":
    main()

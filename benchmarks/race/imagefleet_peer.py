"""This project's engine on the course. It draws the noise that the others start from."""

import os
from collections.abc import Sequence

import numpy as np

from benchmarks.race.peer import PROMPT, Course, serve
from imagefleet.worker.engine.interface import ImageSpec, Pictures
from imagefleet.worker.engine.load import load_engine


def main() -> None:
    course = Course.from_argument()
    engine = load_engine(
        str(course.checkpoint),
        devices=course.devices,
        per_device_batch=course.batch // course.devices,
        cache_dir=course.noise.parent / "cache",
        max_num_inference_steps=course.max_steps,
    )
    engine.warm()
    shape = engine.info.shapes[0]
    _write_noise(course, shape.height // 4, shape.width // 4)

    def paint(steps: Sequence[int]) -> Pictures:
        specs = [
            ImageSpec(
                prompt=PROMPT,
                seed=seed,
                num_inference_steps=count,
                guidance_scale=course.guidance,
                scheduler="ddim",
            )
            for seed, count in enumerate(steps)
        ]
        return engine.render(specs, shape).pictures()

    serve(paint)


def _write_noise(course: Course, height: int, width: int) -> None:
    from imagefleet.worker.engine.sampling import Draw, fold, normal

    keys = np.array([(0, seed) for seed in range(course.batch)], np.uint32)
    of_first_image = np.full(course.batch, Draw.START, np.uint32)
    noise = normal(fold(keys, of_first_image), (height, width, 4))
    partial = course.noise.with_suffix(".part.npy")
    np.save(partial, np.asarray(noise))
    os.replace(partial, course.noise)


if __name__ == "__main__":
    main()

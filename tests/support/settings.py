"""Variables of the processes that tests start."""

import os
from pathlib import Path


def other_variables() -> dict[str, str]:
    """Return the variables of this process that are no settings of the package."""
    return {k: v for k, v in os.environ.items() if not k.startswith("IMAGEFLEET_")}


def worker_settings(redis_url: str, folder: Path, **settings: str) -> dict[str, str]:
    """Return the settings of a worker with the fake engine that stores its images in a folder.

    `settings` are further ones, or replace those.
    """
    return {
        "IMAGEFLEET_REDIS_URL": redis_url,
        "IMAGEFLEET_MODEL": "fake:seconds=0.02,capacity=8",
        "IMAGEFLEET_STORAGE_URL": (folder / "store").as_uri(),
        **settings,
    }


def checkpoint_settings(
    redis_url: str, folder: Path, name: str, shapes: str, **settings: str
) -> dict[str, str]:
    """Return the settings of a worker that makes images of these shapes, two at once.

    The checkpoint of this name is in `folder`, and the worker keeps its programs there, too.
    """
    return worker_settings(
        redis_url,
        folder,
        IMAGEFLEET_MODEL=str(folder / name),
        IMAGEFLEET_SHAPES=shapes,
        IMAGEFLEET_DEVICES="1",
        IMAGEFLEET_PER_DEVICE_BATCH="2",
        IMAGEFLEET_CACHE_DIR=str(folder / "cache"),
        **settings,
    )

"""How tests of a family's worker read images of jobs, and make a dataset."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from imagefleet import Client, Job
from imagefleet.shared.storage import ObjectStore


def pixels(store: ObjectStore, job: Job, index: int = 0) -> NDArray[np.int_]:
    """Wait for a job, and return an image of it, `[h, w, 3]`."""
    data = store.get(job.result(timeout=900).images[index].key)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), int)


def make_and_verify(client: Client, prompts: Sequence[str], folder: Path) -> None:
    """Make a dataset with an image of each prompt, and let two of them be generated again."""
    run = client.bulk(prompts, folder, seed=1)
    assert run.wait(900).images == len(prompts)
    report = run.verify(sample=2)
    assert (report.clean, report.regenerated) == (True, 2)

"""Make a dataset from a CSV file, wait for it, and verify it.

The destination must be reachable from here and from the workers: a shared folder or s3://….
Run it against a running fleet:

    export IMAGEFLEET_REDIS_URL=redis://localhost:6379/0
    python examples/dataset.py /shared/my-dataset

Repeating the command resumes the run, or finds it finished.
"""

import csv
import sys
from pathlib import Path

from imagefleet import Client

COLORS = ["red", "green", "blue", "yellow"]
SHAPES = ["circle", "square", "star"]


def write_prompts(path: Path) -> None:
    """Write one row per image. Columns that are no parameters go into the metadata."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["prompt", "color", "shape"])
        rows.writerows([f"a {color} {shape}", color, shape] for color in COLORS for shape in SHAPES)


def main(destination: str) -> None:
    prompts = Path("prompts.csv")
    write_prompts(prompts)
    with Client() as client:
        run = client.bulk(prompts, destination, shard_size=5, num_inference_steps=20)
        status = run.wait(timeout=600)
        report = run.verify()
    if not report.clean:
        raise SystemExit(f"{status.state}, but {len(report.problems)} shards or files are damaged")
    print(f"{status.state}: {report.present} of {report.planned} images in {report.shards} shards")


if __name__ == "__main__":
    main(sys.argv[1])

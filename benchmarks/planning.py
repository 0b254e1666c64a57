"""Measure the planning of a dataset of 10 million prompts: time, peak memory and Redis memory.

`python -m benchmarks.planning [rows]` writes the prompts as .txt, .jsonl, .csv and .csv.gz. For
each it starts a process that plans them into a folder and a Redis server that receives every shard.
The CSV files have a seed and a note beside each prompt.

It does not show a destination in S3, where writing 10,000 files takes longer than here.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import parser_of, print_json
from imagefleet import Client
from imagefleet.shared.redis_client.connection import connect
from imagefleet.shared.redis_client.local_server import LocalRedisServer

ROWS = 10_000_000
SHARD_SIZE = 1_000
KINDS = ("txt", "jsonl", "csv", "csv.gz")
CSV = ('"{prompt}",{number},note {number}\n', "prompt,seed,note\n")
LINES = {
    "txt": ("{prompt}\n", ""),
    "jsonl": ('{{"prompt": "{prompt}"}}\n', ""),
    "csv": CSV,
    "csv.gz": CSV,
}
"""Each kind of table has a line for each prompt, below its header."""
PROMPT = "a photo of object number {} on a wooden table, studio light, 35mm"


def write_prompts(path: Path, rows: int) -> None:
    line, header = LINES[path.name.partition(".")[2]]
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        file.write(header)
        for number in range(rows):
            file.write(line.format(prompt=PROMPT.format(number), number=number))


def plan(redis_url: str, prompts: str, destination: str) -> dict[str, float]:
    """Plan the dataset in this process, and return the times and its peak memory."""
    began, cpu = time.perf_counter(), time.process_time()
    with Client(redis_url, namespace="planning") as client:
        run = client.bulk(prompts, destination, shard_size=SHARD_SIZE)
    return {
        "rows": run.plan.rows,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def measure(kind: str, rows: int, folder: Path) -> dict[str, float]:
    prompts = folder / f"prompts.{kind}"
    write_prompts(prompts, rows)
    with LocalRedisServer(folder / f"redis-{kind}") as server, connect(server.url) as redis:
        before = redis.info("memory")["used_memory"]
        command = [sys.executable, "-m", "benchmarks.planning", "--plan", server.url]
        output = subprocess.run(
            [*command, str(prompts), str(folder / kind)], check=True, capture_output=True, text=True
        )
        results: dict[str, float] = json.loads(output.stdout)
        held = redis.info("memory")["used_memory"] - before
        results["redis_bytes_per_10_prompts"] = round(held / rows * 10, 2)
    return results


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("rows", type=int, nargs="?", default=ROWS, help="Rows of each table.")
    parser.add_argument("--plan", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        print(json.dumps(plan(*options.plan)))
    else:
        compare(options.rows)


def compare(rows: int) -> None:
    with tempfile.TemporaryDirectory(prefix="imagefleet-planning-") as name:
        results: dict[str, Any] = {k: measure(k, rows, Path(name)) for k in KINDS}
    print(f"{'input':<8}{'rows':>12}{'seconds':>10}{'CPU s':>8}{'peak MB':>9}{'Redis B/10':>12}")
    for kind, row in results.items():
        print(
            f"{kind:<8}{row['rows']:>12}{row['seconds']:>10}{row['cpu_seconds']:>8}"
            f"{row['peak_mb']:>9}{row['redis_bytes_per_10_prompts']:>12}"
        )
    print_json("planning", {**results, "load_average": round(os.getloadavg()[0])})


if __name__ == "__main__":
    main()

"""Measure what a store of encoded texts saves and costs: `python -m benchmarks.texts MODEL`.

MODEL is a checkpoint of a family with a large text encoder. Each row makes the same batches of new
prompts with one step: without a store, with one that lacks the texts, and with one that has them,
which another engine wrote. No memory keeps texts. By default the store is an S3 server of the tests
(moto) on this machine; `--store file:///folder` measures another one.

It does not show accelerators, a network, or a bucket that takes long to answer.
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.report import print_json
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.engine.contract.interface import Engine, ImageSpec, Shape
from imagefleet.worker.engine.contract.text_store import TextStore
from imagefleet.worker.engine.loading.load_engine import SharedStores, load_engine
from imagefleet.worker.startup.shared_texts import SharedTexts
from tests.support.s3 import signed_s3


def open_local_s3(stack: ExitStack) -> ObjectStore:
    """Start an S3 server, and return a store in it."""
    s3 = stack.enter_context(signed_s3())
    os.environ.update(s3.credentials.environment())
    return open_store(s3.url("texts"))


def load(model: str, batch: int, shape: Shape, cache: Path, store: TextStore | None) -> Engine:
    """Load an engine on one device that keeps no texts in memory."""
    engine = load_engine(
        model,
        shapes=[shape],
        devices=1,
        per_device_batch=batch,
        cache_dir=cache,
        shared=SharedStores(texts=store),
    )
    engine.warm()
    return engine


def seconds(engine: Engine, batch: int, shape: Shape, rounds: int) -> list[float]:
    """Return the seconds of each batch."""
    taken = []
    for number in range(rounds):
        specs = [
            ImageSpec(
                prompt=f"prompt {number * batch + slot}",
                num_inference_steps=1,
                guidance_scale=1.0,
                scheduler=engine.info.default_scheduler,
            )
            for slot in range(batch)
        ]
        began = time.perf_counter()
        engine.start_batch(specs, shape).images()
        taken.append(time.perf_counter() - began)
    return taken


def await_texts(store: ObjectStore, count: int) -> None:
    """Wait until the store has this many texts: engines do not wait for it."""
    while sum(1 for _ in store.list()) < count:
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of a checkpoint")
    parser.add_argument("--store", help="address of a store; default: an S3 server here")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--side", type=int, default=64, help="pixels of an image's side")
    options = parser.parse_args()
    shape = Shape(height=options.side, width=options.side)
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = open_store(options.store) if options.store else open_local_s3(stack)
        rows = {}
        for name, texts in (
            ("without a store", None),
            ("a store without the texts", SharedTexts(store, pause_s=0.0)),
            ("a store with the texts", SharedTexts(store, pause_s=0.0)),
        ):
            engine = load(options.model, options.batch, shape, cache, texts)
            rows[name] = seconds(engine, options.batch, shape, options.rounds)
            use = engine.text_cache
            print(
                f"{name:>28}: {1e3 * statistics.median(rows[name]):9.1f} ms a batch, "
                f"{use.misses} texts encoded, {use.stored} from the store",
                flush=True,
            )
            if texts and not use.stored:
                await_texts(store, use.misses)
        size = len(store.get(next(iter(store.list()))))
    medians = {name: round(1e3 * statistics.median(row), 2) for name, row in rows.items()}
    about = {"batch": options.batch, "bytes_a_text": size, "ms_a_batch": medians}
    print_json("texts", about)


if __name__ == "__main__":
    main()

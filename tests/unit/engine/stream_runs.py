"""Run images through the slots of a stream."""

from collections.abc import Callable, Sequence

from imagefleet.worker.engine.contract.interface import (
    FinishedImage,
    ImageArray,
    ImageSpec,
    Shape,
    Stream,
)


def run_stream(
    stream: Stream, shape: Shape, slots: int, specs: Sequence[ImageSpec]
) -> list[ImageArray]:
    """Run `specs` in order. Each takes the first slot that comes free."""
    waiting = list(enumerate(specs))
    running: dict[int, int] = {}
    finished: dict[int, Callable[[], FinishedImage]] = {}
    while waiting or running:
        for slot in range(slots):
            if slot not in running and waiting:
                number, spec = waiting.pop(0)
                stream.start(slot, spec, shape)
                running[slot] = number
        for slot in stream.step():
            finished[running.pop(slot)] = stream.finish(slot)
    return [finished[number]().pixels for number in range(len(specs))]

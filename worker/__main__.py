"""Run `imagefleet-worker` as `python -m imagefleet.worker`."""

from imagefleet.worker.cli import main

main()

"""`python -m worker` is `imagefleet-worker`."""

from imagefleet.worker.cli import main

main()

"""`python -m worker` is `imagefleet-worker`."""

from worker.cli import main

main()

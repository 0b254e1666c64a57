"""`python -m imagefleet.producer` runs the `imagefleet` command."""

from imagefleet.producer.cli import main

main()

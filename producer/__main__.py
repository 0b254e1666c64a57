"""`python -m producer` is `imagefleet`."""

from imagefleet.producer.cli import main

main()

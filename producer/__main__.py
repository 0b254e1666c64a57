"""`python -m producer` is `imagefleet`."""

from producer.cli import main

main()

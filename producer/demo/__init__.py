"""The demo: the whole system on one machine, for `imagefleet demo`."""

"""The demo runs the whole system on one machine, for `imagefleet demo`."""

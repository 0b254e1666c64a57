"""Random and hostile input against one real worker. `make fuzz` runs it at full size."""

"""The load of many HTTP clients on one gateway, beside its peers."""

"""A fleet under every kind of death, and a ledger of what became of each prompt."""

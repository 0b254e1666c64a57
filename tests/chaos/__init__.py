"""Fault injection: run a fleet while its parts are killed, then audit every job."""

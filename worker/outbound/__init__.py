"""Connections to addresses that strangers gave us: vetted, bounded, without redirects."""

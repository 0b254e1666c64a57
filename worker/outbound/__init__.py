"""HTTP requests to addresses that users name: checked, bounded, without redirects."""

"""Say how to install an extra of imagefleet, which no package index has."""


def how_to_install(extra: str) -> str:
    """Return the advice for an error that a missing package causes."""
    return f'install imagefleet with its extra: pip install "imagefleet-….whl[{extra}]" (README.md)'

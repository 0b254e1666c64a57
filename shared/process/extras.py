"""Say how to install an extra of imagefleet, which no package index has."""


def how_to_install(*extras: str) -> str:
    """Return the advice for an error that a missing package causes."""
    noun = "extra" if len(extras) == 1 else "extras"
    wheel = f"imagefleet-….whl[{','.join(extras)}]"
    return f'install imagefleet with its {noun}: pip install "{wheel}" (README.md)'

"""Write the typed keywords of the client from the table of parameters: `python -m
tools.client_parameters`.

Type checkers read `producer/client/parameters.py`, so it cannot be built at run time.
"""

import textwrap
from pathlib import Path

from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, kind

FILE = Path(__file__).parents[1] / "producer" / "client" / "parameters.py"
_CLASS = """class JobParameters(TypedDict, total=False):
    \"\"\"The parameters of a job beside its prompt and id, in diffusers' names.

    None, or leaving one out, stands for the default: the model's own, where none is named here.
    \"\"\"

"""
_WIDTH = 100


def text() -> str:
    """Return the text of the file: what stands before the class stays as it is."""
    head = FILE.read_text().partition("class JobParameters(")[0]
    names = (name for name in PARAMETERS if name != "prompt")
    return head + _CLASS + "".join(map(_field, names))


def _field(name: str) -> str:
    row = PARAMETERS[name]
    quoted = f'"""{row.about}"""'
    about = textwrap.fill(quoted, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    return f"    {name}: {row.given_as or kind(name).__name__} | None\n{about}\n"


if __name__ == "__main__":
    FILE.write_text(text())

"""Recognise a table of columns in a file that is named as plain text.

Excel saves a sheet as "Unicode Text" under the name `.txt`: UTF-16, with tabs between the cells.
Its header would become a prompt, and each row one with its numbers in it. Pure functions.
"""

from typing import Final

from imagefleet.shared.jobs.foreign_names import FOREIGN_NAMES, plain_name
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS

_READ_BY: Final = {
    "\t": "--input-format tsv (in Python input_format='tsv') reads it",
    ",": "--input-format csv (in Python input_format='csv') reads it",
    ";": "--input-format csv --delimiter ';' (in Python input_format= and delimiter=) reads it",
}
_MIN_PARAMETERS: Final = 2
"""So many cells name parameters in a header, unless tabs stand between its cells: people write no
tabs into prompts, but they do write commas."""


def how_to_read_header(line: str) -> str | None:
    """Return how to read a file that begins with this line; None if the line is no header."""
    if line.strip().strip('"').lower() == "prompt":
        return _READ_BY["\t"]
    for delimiter, how in _READ_BY.items():
        cells = [cell.strip().strip('"') for cell in line.split(delimiter)]
        named = [ours for cell in cells if (ours := _parameter(cell))]
        enough = 1 if delimiter == "\t" else _MIN_PARAMETERS
        if len(cells) > 1 and "prompt" in named and len(named) >= enough:
            return how
    return None


def _parameter(cell: str) -> str | None:
    """Return the parameter of jobs that a cell of a header names, here or in another tool."""
    name = plain_name(cell)
    if name in PARAMETERS:
        return name
    return FOREIGN_NAMES[name].ours if name in FOREIGN_NAMES else None

"""Check the names of the columns of an input, and of the parameters of a dataset. Pure functions.

Input: a name. Output: an error if it would look as if it were used, and is not. This module does
not read the cells of rows.
"""

import difflib
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from imagefleet.producer.bulk.copied_columns import RowRejected, escape_surrogates
from imagefleet.shared.errors import InvalidRequest
from imagefleet.shared.jobs.foreign_names import FOREIGN_NAMES, hint, plain_name
from imagefleet.shared.jobs.parameter_lookups import ROW_PARAMETERS
from imagefleet.shared.jobs.request import JobRequest
from imagefleet.shared.text.printable import printable

MAX_COLUMNS: Final = 1_000
"""A table has at most so many columns, and all rows of a run copy at most so many different ones.
"""
_COLUMNS: Final = ("prompt", *ROW_PARAMETERS, "seed", "height", "width", "model")
"""Columns that set a parameter. All other columns are copied into the metadata."""
_SPELLED: Final = dict(zip(_COLUMNS, _COLUMNS, strict=True))
_JOB_COLUMNS: Final = frozenset(JobRequest.model_fields) - {*_COLUMNS, "metadata"}
"""Parameters of jobs that rows of a dataset do not have. A copied one would look like a used
one."""
_MIN_SIMILARITY: Final = 0.85
"""A column name at least this similar to a parameter's name is taken for a typing error."""
_NO_LATENTS: Final = (
    "leaves latents, and a dataset holds images; submit jobs with it, and give their latents to "
    "rows with denoising_start"
)


def parameter_by_column(renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the parameter of each column that sets one.

    Args:
        renamed: parameter to the column that holds it, where the names differ.

    Raises:
        InvalidRequest: a parameter is unknown.
    """
    for name, column in renamed.items():
        if name not in _COLUMNS:
            limit = f"no such parameter; the parameters are {', '.join(_COLUMNS)}"
            limit = hint(name, _SPELLED) or limit
            raise InvalidRequest("column", f"{name}={column}", limit)
    return {renamed.get(name, name): name for name in _COLUMNS}


def check_parameters(given: Mapping[str, object]) -> None:
    """Raise InvalidRequest if a parameter for all rows is none of rows."""
    for name in sorted(given.keys() - {*ROW_PARAMETERS}):
        known = ", ".join(name for name in _COLUMNS if name != "prompt")
        limit = hint(name, _SPELLED) or f"no such parameter; the parameters of rows are {known}"
        raise InvalidRequest(name, given[name], _NO_LATENTS if name == "denoising_end" else limit)


def checked_ignored_columns(names: Iterable[str]) -> frozenset[str]:
    """Return the names of the columns to leave out. Raise InvalidRequest if they are one text."""
    if isinstance(names, str):  # its letters would be the names
        limit = f"must be a list of names, as in ignore_columns=[{names!r}]"
        raise InvalidRequest("ignore_columns", names, limit)
    return frozenset(names)


def check_copied_column(column: object) -> None:
    """Check the name of a column that sets no parameter, and so is copied.

    Raises:
        InvalidRequest: it is empty, or that of a parameter of jobs, or looks like a mistyped one.
        RowRejected: it is no text, or cannot be encoded.
    """
    if not isinstance(column, str):
        raise RowRejected("column", column, "must have a name")
    if not column:
        limit = (
            "has no name, as the index that df.to_csv() of pandas writes; leave it out with "
            "--ignore-column '' (in Python ignore_columns=[''])"
        )
        raise InvalidRequest("column", column, limit)
    if column != escape_surrogates(column):
        raise RowRejected("column", column, "must have a UTF-8 name")
    ignoring = f"--ignore-column {shlex.quote(column)} (in Python ignore_columns=[{column!r}])"
    plain = column.lower().replace("-", "_").replace(" ", "_")
    if plain == "denoising_end":
        raise InvalidRequest("column", column, f"{_NO_LATENTS}, or leave it out with {ignoring}")
    if plain in _JOB_COLUMNS:
        raise InvalidRequest(
            "column",
            column,
            "is a parameter of jobs that the rows of a dataset do not have; rename the column "
            f"to copy it into the metadata, or leave it out with {ignoring}",
        )
    foreign = FOREIGN_NAMES.get(plain)
    if foreign is not None and not foreign.is_word and (called := hint(plain, _SPELLED)):
        using = (
            f"; use it with --column {foreign.ours}={shlex.quote(column)}" if foreign.ours else ""
        )
        raise InvalidRequest("column", column, f"{called}{using}, or leave it out with {ignoring}")
    if like := difflib.get_close_matches(plain, _COLUMNS, 1, _MIN_SIMILARITY):
        option = shlex.quote(f"{like[0]}={column}")
        raise InvalidRequest(
            "column",
            column,
            f"looks like {like[0]!r}; rename it, use it for {like[0]} with --column {option} "
            f"(in Python columns={{{like[0]!r}: {column!r}}}), or leave it out with {ignoring}",
        )


def note_unused_word(
    column: str, parameter_of: Mapping[str, str], row: Mapping[str, object]
) -> str | None:
    """Return a sentence about a copied column whose name is an ordinary word, and that of another
    tool for a parameter which the row does not set. None: there is nothing to say.

    Args:
        parameter_of: columns that set a parameter, and which.
    """
    foreign = FOREIGN_NAMES.get(plain_name(column))
    if foreign is None or not foreign.is_word:
        return None
    meant = foreign.ours.split(" and ")
    if not {*meant} <= {*_COLUMNS} or {parameter_of.get(each) for each in row} & {*meant}:
        return None
    option = f"--column {foreign.ours}={shlex.quote(column)} (in Python columns=) uses it"
    how = option if len(meant) == 1 else "give each a column of its own"
    return (
        f"the column {printable(column)} sets nothing and is copied; if it is what is called "
        f"{foreign.ours} here, {how}"
    )

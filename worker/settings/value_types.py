"""The types of settings whose values need more than pydantic's own parsing.

Input: the text of an environment variable or a flag. Output: the value, or a ValueError whose text
follows the name of the setting.
"""

import shlex
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr
from pydantic_settings import NoDecode

from imagefleet.shared.jobs.worker_status import Trait
from imagefleet.shared.text.durations import parse_duration
from imagefleet.worker.engine.options.model_options import LICENSE_NAME


def _split_commas(value: object) -> Any:
    """Return the words of a text between its commas, and any other value as it is."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


def _split_secrets(value: object) -> object:
    return tuple(map(SecretStr, _split_commas(value))) if isinstance(value, str) else value


def _split_words(value: object) -> object:
    return tuple(shlex.split(value)) if isinstance(value, str) else value


def _parse_duration(value: object) -> object:
    return None if value in (None, "") else parse_duration(value)


def _check_license(name: str) -> str:
    if not LICENSE_NAME.fullmatch(name):
        raise ValueError("must be at most 100 letters, digits, blanks and . + ( ) / -")
    return name


def _check_no_credentials(url: str) -> str:
    if not url.startswith("file:") and "@" in unquote(url):
        raise ValueError(
            "must not hold credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    return url


def _check_plain_http(url: str) -> str:
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode()
    bare = parts._replace(query="", fragment="").geturl() == url and "@" not in parts.netloc
    if parts.scheme != "http" or host != parts.hostname or parts.port == 0 or not bare:
        raise ValueError("must be http://host/path, without user, query or fragment")
    return url


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_commas)]
"""Several values stand in one variable, separated by commas."""

Traits = Annotated[tuple[Trait, ...], NoDecode, BeforeValidator(_split_commas)]
"""Several of what hosts have in common stand in one variable, separated by commas."""

Secrets = Annotated[tuple[SecretStr, ...], NoDecode, BeforeValidator(_split_secrets)]
"""Several secrets stand in one variable, separated by commas."""

ShellWords = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_words)]
"""Several values stand in one variable, separated by spaces and quoted as in a shell."""

Duration = Annotated[float | None, BeforeValidator(_parse_duration)]
"""Seconds, which may be written as `12h` or `30d`. An empty text counts as None."""

StoreUrl = Annotated[str, AfterValidator(_check_no_credentials)]
"""The address of a store, in which no credentials stand. `open_store` checks the rest of it."""

License = Annotated[str, AfterValidator(_check_license)]
"""It is the name of a licence, as in the header of a model's card."""

PlainHttpUrl = Annotated[str, AfterValidator(_check_plain_http)]
"""It is an address http://host/path, without user, query and fragment."""

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path in which `~` is the home folder."""

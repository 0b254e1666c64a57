"""`imagefleet keys`: create, list and revoke the API keys of the HTTP gateway."""

import json
import time
from typing import Any

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command, iso_time
from imagefleet.producer.commands.each import for_each
from imagefleet.producer.commands.output import (
    echo,
    echo_fields,
    echo_json,
    json_option,
    note_none,
)
from imagefleet.producer.gateway.access.api_key import ApiKey, Scope, id_in
from imagefleet.producer.gateway.access.keys import ApiKeys
from imagefleet.shared.text.durations import seconds_in


def _parse_number(text: str) -> int | None:
    try:
        return None if text == "none" else int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a whole number nor none") from None


def _parse_lifetime(text: str) -> float | None:
    try:
        return None if text == "never" else seconds_in(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} {error}; or never") from None


@click.group
def keys() -> None:
    """Create, list and revoke the API keys of the HTTP gateway.

    Redis holds a digest of each key, so a key is shown once and cannot be shown again.
    """


@client_command
@click.option("--name", required=True, help="What you recognize the key by.")
@click.option("--tenant", required=True, help="The tenant of all its jobs.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice([scope.value for scope in Scope]),
    multiple=True,
    default=(Scope.SUBMIT.value, Scope.READ.value),
    show_default=True,
    help="What it may do; repeat it for several.",
)
@click.option(
    "--priority",
    type=click.IntRange(0, 9),
    default=3,
    show_default=True,
    help="The highest priority of its jobs: 0 is the highest of all.",
)
@click.option(
    "--per-minute",
    type=_parse_number,
    metavar="NUMBER",
    default="600",
    show_default=True,
    help="Requests in any 60 seconds; none: no limit.",
)
@click.option(
    "--images-per-day",
    type=_parse_number,
    metavar="NUMBER",
    default="none",
    show_default=True,
    help="Images in one UTC day; none: no limit.",
)
@click.option(
    "--expires",
    "lifetime_s",
    type=_parse_lifetime,
    metavar="TIME",
    default="never",
    show_default=True,
    help="Time from now after which it is refused, as in 12h or 90d; never: it does not expire.",
)
@json_option("Print id and key as one JSON object.")
def create(
    client: Client,
    priority: int,
    lifetime_s: float | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Create a key and print it, once.

    Standard output gets the key and nothing else.
    """
    expires_at = None if lifetime_s is None else time.time() + lifetime_s
    api_keys = ApiKeys(client.connection)
    text = api_keys.create(max_priority=priority, expires_at=expires_at, **fields)
    echo(f"key {id_in(text)} of tenant {fields['tenant']}; it is not shown again", err=True)
    if as_json:
        echo_fields({"id": id_in(text), "key": text}, as_json=True)
    else:
        echo(text)


@client_command
@json_option()
def list_keys(client: Client, as_json: bool) -> None:
    """List all keys, the oldest first, also those that have expired or are revoked.

    Columns: id, state, tenant, scopes, highest priority, requests a minute, images a day, end, last
    use, name.
    """
    api_keys = ApiKeys(client.connection)
    listed, used = api_keys.list(), api_keys.last_uses()
    if not listed:
        note_none("keys")
    for key in listed:
        if as_json:
            fields = key.model_dump(mode="json", exclude={"digest"})
            used_at = used.get(key.id)
            echo_json(json.dumps({**fields, "state": _state(key), "last_used_at": used_at}))
        else:
            echo(_format_line(key, used.get(key.id)))


@client_command
@click.argument("ids", nargs=-1, required=True)
@json_option()
def revoke(client: Client, ids: tuple[str, ...], as_json: bool) -> None:
    """Revoke keys for ever, at every gateway within two seconds.

    IDS are ids of keys, as `list` prints them; the text of a key names it, too.
    """
    api_keys = ApiKeys(client.connection)
    key_ids = [id_in(each) for each in ids]  # no output repeats the secret of a key
    for_each(key_ids, lambda key_id: _revoke(api_keys, key_id), as_json=as_json)


for name, command in (("create", create), ("list", list_keys), ("revoke", revoke)):
    keys.add_command(command, name)


def _revoke(api_keys: ApiKeys, key_id: str) -> dict[str, object]:
    revoked = api_keys.revoke(key_id)
    return {"name": revoked.name, "note": "revoked"}


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "valid" if key.is_valid_at(time.time()) else "expired"


def _format_line(key: ApiKey, used_at: float | None) -> str:
    parts = [
        key.id,
        _state(key),
        key.tenant,
        ",".join(key.scopes) or "-",
        str(key.max_priority),
        "-" if key.per_minute is None else str(key.per_minute),
        "-" if key.images_per_day is None else str(key.images_per_day),
        "never" if key.expires_at is None else iso_time(key.expires_at),
        "-" if used_at is None else iso_time(used_at),
        key.name,
    ]
    return "  ".join(parts)

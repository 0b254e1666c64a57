"""`imagefleet tenants`: show waiting jobs per tenant, and set weights and limits."""

import click

from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.output import echo, echo_json, json_option
from imagefleet.shared.jobs.tenants import ALL_TENANTS, NO_TENANT, TenantStatus


def _split_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def _parse_weight(text: str) -> tuple[str, float]:
    name, value = _split_pair(text)
    try:
        return name, float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number; 1 is the weight of others") from None


def _parse_limit(text: str) -> tuple[str, int | None]:
    name, value = _split_pair(text)
    try:
        return name, None if value == "none" else int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a whole number of jobs nor none") from None


@client_command
@click.option(
    "--weight",
    "weights",
    type=_parse_weight,
    metavar="NAME=NUMBER",
    multiple=True,
    help="Set a weight. gold=3: three images for each image of a tenant with weight 1.",
)
@click.option(
    "--limit",
    "limits",
    type=_parse_limit,
    metavar="NAME=JOBS",
    multiple=True,
    help="Limit the waiting jobs: gold=1000, '*=100000' for all together; gold=none removes it.",
)
@json_option()
def tenants(
    client: Client,
    weights: tuple[tuple[str, float], ...],
    limits: tuple[tuple[str, int | None], ...],
    as_json: bool,
) -> None:
    """Show and set weights and limits of tenants.

    First the options are applied. Then each tenant's waiting jobs, weight and limit are listed.

    Weights and limits apply from the next batch or submission, for every worker and producer. '*'
    stands for all tenants together, an empty name for the jobs without a tenant.
    """
    for tenant, weight in weights:
        client.tenants.set_weight(tenant, weight)
    for tenant, limit in limits:
        client.tenants.set_limit(tenant, limit)
    if not as_json:
        echo(_format_row("tenant", "waiting", "weight", "limit"))
    for each in client.tenants.statuses():
        if as_json:
            echo_json(each.model_dump_json())
        else:
            echo(_format_tenant(each))


def _format_tenant(status: TenantStatus) -> str:
    weight = "-" if status.tenant in (ALL_TENANTS, NO_TENANT) else f"{status.weight:g}"
    limit = "-" if status.limit is None else str(status.limit)
    return _format_row(status.tenant, str(status.waiting), weight, limit)


def _format_row(tenant: str, *numbers: str) -> str:
    return f"{tenant:32}" + "".join(f"{number:>12}" for number in numbers)

"""`imagefleet tenants`: who waits, who gets how much, who may queue how many."""

import click

from imagefleet.producer.client import Client
from imagefleet.producer.commands.connection import connected
from imagefleet.shared.jobs.tenants import ALL_TENANTS, NO_TENANT, TenantStatus


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not equals or not value:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


@connected
@click.option(
    "--weight",
    "weights",
    type=_pair,
    metavar="NAME=NUMBER",
    multiple=True,
    help="gold=3: pictures it gets for each one of a tenant with weight 1.",
)
@click.option(
    "--limit",
    "limits",
    type=_pair,
    metavar="NAME=JOBS",
    multiple=True,
    help="gold=1000: jobs that may wait; '*=100000' of all together; gold=none.",
)
def tenants(
    client: Client, weights: tuple[tuple[str, str], ...], limits: tuple[tuple[str, str], ...]
) -> None:
    """Who waits, with how many jobs, by what weight and limit; sets weights and limits first.

    Both hold from the next job or batch on, for every producer and worker. '*' is everybody, a
    blank name are jobs without a tenant.
    """
    for tenant, weight in weights:
        client.tenants.set_weight(tenant, _number(weight))
    for tenant, limit in limits:
        client.tenants.limit(tenant, None if limit == "none" else _jobs(limit))
    click.echo(_row("tenant", "waiting", "weight", "limit"))
    for each in client.tenants.statuses():
        click.echo(_line(each))


def _line(standing: TenantStatus) -> str:
    weight = "-" if standing.tenant in (ALL_TENANTS, NO_TENANT) else f"{standing.weight:g}"
    limit = "-" if standing.limit is None else str(standing.limit)
    return _row(standing.tenant, str(standing.waiting), weight, limit)


def _row(tenant: str, *numbers: str) -> str:
    return f"{tenant:32}" + "".join(f"{number:>12}" for number in numbers)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a number") from None


def _jobs(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is neither a whole number of jobs nor none") from None

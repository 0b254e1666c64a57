"""Build the `imagefleet` command. Each subject has its own file in `producer.commands`."""

import click

from imagefleet.producer.commands import (
    bulk,
    dead_letters,
    demo,
    doctor,
    exporter,
    fleet,
    jobs,
    keys,
    list_jobs,
    serve,
    submit,
    tenants,
    webhooks,
    workers,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="imagefleet")
def main() -> None:
    """Turn very many prompts into images on a fleet of TPU hosts."""


for command in (
    submit.submit,
    list_jobs.jobs,
    jobs.status,
    jobs.wait,
    jobs.get,
    jobs.cancel,
    jobs.delete,
    jobs.resend,
    bulk.bulk,
    fleet.fleet,
    workers.workers,
    serve.serve,
    exporter.exporter,
    tenants.tenants,
    keys.keys,
    doctor.doctor,
    dead_letters.dead_letters,
    webhooks.webhooks,
    demo.demo,
):
    main.add_command(command)

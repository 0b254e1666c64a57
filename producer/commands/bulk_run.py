"""Define `imagefleet bulk run`: plan a dataset, start it, and show its progress."""

from enum import StrEnum
from typing import Any, Final

import click

from imagefleet.producer.bulk.alternatives import Mode
from imagefleet.producer.bulk.inputs import InputNames
from imagefleet.producer.bulk.receivers import CallbackAddress
from imagefleet.producer.bulk.shard_sender import DEFAULT_PRIORITY
from imagefleet.producer.bulk.shard_sizes import DEFAULT_SHARD_SIZE
from imagefleet.producer.client.client import Client
from imagefleet.producer.commands.bulk_output import (
    exit_saying_what_lacks,
    print_dry_run,
    print_rejected,
    watch_run,
)
from imagefleet.producer.commands.client_command import client_command
from imagefleet.producer.commands.input_options import input_options
from imagefleet.producer.commands.notify_command import NotifyCommand, notify_options, watched_by
from imagefleet.producer.commands.output import echo, echo_json, json_option
from imagefleet.producer.commands.parameter_options import parameter_options
from imagefleet.shared.bulk.plan import BulkFormat
from imagefleet.shared.jobs.model import ImageFormat
from imagefleet.shared.jobs.parameter_lookups import PARAMETERS, ROW_PARAMETERS
from imagefleet.shared.text.printable import counted

_PARAMETERS: Final = frozenset({*ROW_PARAMETERS, "height", "width", "model"})
"""Parameters of jobs that a run sets for all rows."""
_OF_RUN: Final = ("max_failures", "priority", "callback_url", "callback_tenant")
"""These options do not change the dataset."""


def _choice(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([each.value for each in kind])


class _ShardFormat(click.Choice[str]):
    """The formats of shards. For jobs --format is the format of an image."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        message = super().get_invalid_choice_message(value, ctx)
        if value in [each.value for each in ImageFormat]:
            message += f" The format of the images is --image-format {value}."
        return message


def _require_inputs(
    _context: click.Context, _argument: click.Parameter, inputs: tuple[str, ...]
) -> tuple[str, ...]:
    """Raise click.UsageError if one name alone is given: click takes it for the destination."""
    if not inputs:
        raise click.UsageError("give one INPUT or more, and then the DESTINATION")
    return inputs


@client_command
@click.argument("inputs", nargs=-1, metavar="INPUT...", callback=_require_inputs)
@click.argument("destination")
@input_options("as the names of the files end.")
@click.option(
    "--shard-size",
    type=int,
    help=f"Images per shard. Default: {DEFAULT_SHARD_SIZE:,}, or fewer so that each living worker "
    "gets some shards.",
)
@click.option(
    "--format",
    type=_ShardFormat([each.value for each in BulkFormat]),
    default="webdataset",
    show_default=True,
    help="Format of the shards.",
)
@click.option(
    "--image-format",
    type=_choice(ImageFormat),
    default="png",
    show_default=True,
    help="Format of the image files.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For rows without a seed.")
@parameter_options(name for name in PARAMETERS if name in _PARAMETERS)
@click.option("--denoising-end", type=float, hidden=True, help="Refused, with what to do instead.")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="PARAMETER=COLUMN",
    help="Read a parameter from another column, as in prompt=caption.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Use only the first rows of the input.")
@click.option(
    "--alternatives",
    type=_choice(Mode),
    help="Expand {red|blue|3::green} in prompts: to all combinations, or to those that the row's "
    "seed draws.",
)
@click.option(
    "--wildcards",
    type=click.Path(exists=True, file_okay=False),
    help="Expand __color__ in prompts to a line of color.txt in this folder.",
)
@click.option(
    "--append", is_flag=True, help="Add the rows behind those that DESTINATION has already."
)
@click.option("--dedupe", is_flag=True, help="Generate rows with equal parameters only once.")
@click.option(
    "--max-rejected",
    metavar="N|P%",
    help="Refuse the run if more rows than N, or than P percent of all, are rejected.",
)
@click.option("--strict", is_flag=True, help="Refuse the run if a row is rejected.")
@click.option("--max-failures", type=int, help="Stop the run when more images than this fail.")
@click.option(
    "--priority",
    type=int,
    default=DEFAULT_PRIORITY,
    show_default=True,
    help="0 (first) to 9 (last).",
)
@click.option(
    "--callback-url",
    metavar="URL",
    help="The http(s) URL that receives a signed webhook when the run starts, at each tenth of its "
    "images, when it stalls, and at its end.",
)
@click.option(
    "--callback-tenant", metavar="TENANT", help="The tenant whose secrets sign these webhooks."
)
@click.option(
    "--dry-run",
    "is_dry_run",
    is_flag=True,
    help="Check every row and estimate time and bytes. Write and queue nothing.",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Show the progress until the end."
)
@notify_options
@json_option("Print the status as one JSON object, with --wait at the end, and no progress.")
def run(
    client: Client,
    inputs: tuple[str, ...],
    destination: str,
    columns: tuple[str, ...],
    is_dry_run: bool,
    wait: bool,
    notify_command: NotifyCommand | None,
    stalled_after: float,
    as_json: bool,
    strict: bool,
    **options: Any,
) -> None:
    """Generate images for every row of the INPUTs in DESTINATION.

    An INPUT is a .txt, .csv, .tsv, .jsonl, .json, .parquet or .arrow file, a folder, a glob,
    images with their parameters, s3://bucket/…, hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT],
    or - for standard input, which needs --input-format.

    The same command resumes a run that has not finished. The exit code is 1 if the run does not
    succeed, and 3 if it does and rows were rejected or images failed.
    """
    of_run = {name: options.pop(name) for name in _OF_RUN}
    given = {name: value for name, value in options.items() if value is not None}
    given |= {"columns": _parse_columns(columns), "upload_files": True}
    if strict and given.setdefault("max_rejected", "0") != "0":
        raise click.UsageError("give either --strict or --max-rejected")
    if notify_command is not None and not wait:
        raise click.UsageError("--notify-command needs --wait: this process runs the command")
    names = InputNames(inputs)
    if is_dry_run:
        CallbackAddress.parse(of_run["callback_url"], of_run["callback_tenant"])
        print_dry_run(client.dry_run_bulk(names, destination, **given), as_json=as_json)
    bulk_run = client.bulk(names, destination, **of_run, **given)
    plan = bulk_run.plan
    echo(
        f"run {bulk_run.id}: {counted(plan.samples, 'image')} from {counted(plan.rows, 'row')} "
        f"in {bulk_run.destination}",
        err=as_json,
    )
    if plan.duplicates:
        echo(f"{counted(plan.duplicates, 'duplicate row')} left out", err=as_json)
    listed_in = "; plan/rejected.jsonl lists all of them"
    print_rejected(plan.rejected, bulk_run.rejected(), listed_in)
    if wait:
        watched = watched_by(notify_command, bulk_run, stalled_after)
        watch_run(bulk_run, as_json=as_json, watched=watched)
        return
    if as_json:
        echo_json(bulk_run.status().model_dump_json())
    exit_saying_what_lacks(bulk_run, 0, as_json=as_json)


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str]:
    """Return parameter to column. Raise click.UsageError if an option is not PARAMETER=COLUMN."""
    parsed = {}
    for text in columns:
        name, equals, column = text.partition("=")
        if not equals or not name or not column:
            raise click.UsageError(
                f"--column {text}: must be PARAMETER=COLUMN, as in prompt=caption"
            )
        parsed[name.replace("-", "_")] = column
    return parsed

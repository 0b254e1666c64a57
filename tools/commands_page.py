"""Write docs/commands.md from the commands themselves: `python -m tools.commands_page`."""

from collections.abc import Iterator
from pathlib import Path

import click

from imagefleet.producer.commands.cli import main as producer
from imagefleet.worker.commands.cli import main as worker

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"

_HEAD = """# Commands

`make docs` writes this page from `producer/commands` and `worker/commands/cli.py`.

Every command prints its options with `--help`. What all commands of producers have in common, and their exit codes:
[client.md](client.md#the-command-line). The exit codes of workers: [reliability.md](reliability.md#how-a-worker-ends).
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            _HEAD,
            "## Producers and operators\n",
            *_table("imagefleet", producer),
            "",
            "## Hosts with devices\n",
            *_table("imagefleet-worker", worker),
            "",
            "`imagefleet-worker` without a command is `imagefleet-worker run`.",
            "",
        ]
    )


def _table(name: str, group: click.Group) -> list[str]:
    rows = [
        f"| `{' '.join([name, *words])}` | {command.get_short_help_str(limit=1000)} |"
        for words, command in commands_of(group)
    ]
    return ["| command | what it does |", "|---|---|", *rows]


def commands_of(group: click.Group) -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command below `group`, with the words that call it and name its arguments."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            for words, inner in commands_of(command):
                yield [name, *words], inner
        else:
            context = click.Context(command)
            arguments = [
                each.make_metavar(context)
                for each in command.params
                if isinstance(each, click.Argument)
            ]
            yield [name, *arguments], command


if __name__ == "__main__":
    PAGE.write_text(page())

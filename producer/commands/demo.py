"""`imagefleet demo`."""

import sys
from pathlib import Path
from typing import Any

import click

from imagefleet.producer.commands.connection import clear_exit


@click.command()
@click.option("--prompt", "prompts", multiple=True, help="Your own, as often as you like.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out"), show_default=True)
@click.option("--model", default="shapes", show_default=True)
@click.option("--num-inference-steps", type=int)
@click.option("--guidance-scale", type=float)
@click.option("--negative-prompt", default="")
@click.option("--seed", type=int, default=0, show_default=True)
def demo(prompts: tuple[str, ...], out: Path, model: str, **parameters: Any) -> None:
    """Run the whole system here: Redis, a worker on 8 virtual devices, callbacks, pictures."""
    try:
        from imagefleet.producer.demo import run_demo
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: install imagefleet[demo]") from None

    given = {name: value for name, value in parameters.items() if value is not None}
    with clear_exit():
        sys.exit(run_demo(prompts, out, model, given))

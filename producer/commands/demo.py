"""`imagefleet demo`: run the whole system on this machine."""

import sys
from pathlib import Path
from typing import Any

import click

from imagefleet.producer.commands.client_command import exit_on_errors
from imagefleet.shared.process.extras import how_to_install


@click.command()
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    help="Your own prompt; repeat the option for more. Default: sixteen built-in prompts.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for images and logs.",
)
@click.option(
    "--model",
    default="shapes",
    show_default=True,
    help="`shapes`, `shapes-dit`, or a checkpoint folder.",
)
@click.option("--num-inference-steps", type=int, help="Denoising steps. Default: the model's.")
@click.option("--guidance-scale", type=float, help="Default: the model's.")
@click.option("--negative-prompt", help="What the images should not show.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every job.")
@click.option(
    "--serve/--no-serve",
    default=None,
    help="Go on serving HTTP afterwards, until Ctrl-C. Default: in a terminal.",
)
@click.option("--browse", is_flag=True, help="Then open the gateway's page, with images in it.")
def demo(
    prompts: tuple[str, ...],
    out: Path,
    model: str,
    serve: bool | None,
    browse: bool,
    **parameters: Any,
) -> None:
    """Run the whole system on this machine.

    The demo starts Redis, a worker on 8 virtual devices, a callback receiver and an HTTP gateway,
    submits jobs, and writes their images and a contact sheet. It prints the address of the
    gateway's page, and a curl line that asks for an image.
    """
    try:
        from imagefleet.producer.demo.run import run_demo
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}; {how_to_install('demo')}") from None

    given = {name: value for name, value in parameters.items() if value is not None}
    with exit_on_errors():
        if serve is None:
            serve = browse or (sys.stdin.isatty() and sys.stdout.isatty())
        sys.exit(run_demo(prompts, out, model, given, serve=serve, browse=browse))

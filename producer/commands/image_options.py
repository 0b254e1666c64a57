"""Options that name what jobs and rows start from: images and latents."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from imagefleet.producer.connection.input_images import path_or_address
from imagefleet.shared.errors import InvalidRequest

F = TypeVar("F", bound=Callable[..., Any])


def image_options(command: F) -> F:
    """Add the options `--image`, `--mask-image`, `--strength` and `--image-guidance-scale`."""
    return _add_options(
        command,
        click.option(
            "--image-guidance-scale",
            type=float,
            help="How closely a model that edits images follows the init image.",
        ),
        click.option(
            "--strength",
            type=float,
            help="How much of the init image is replaced: above 0, up to 1.",
        ),
        click.option(
            "--mask-image",
            callback=_parse_image,
            help="Mask of the init image, given like it: white is replaced, black is kept.",
        ),
        click.option(
            "--image",
            callback=_parse_image,
            help="Init image: a path that begins with /, ./, ../ or ~, an http(s) address, or a "
            "key of the fleet's store.",
        ),
    )


def latents_options(command: F) -> F:
    """Add the options `--latents` and `--denoising-start`."""
    return _add_options(
        command,
        click.option(
            "--denoising-start",
            type=float,
            help="The share of the steps that the latents have behind them.",
        ),
        click.option(
            "--latents",
            callback=_parse_image,
            help="Latents of a job with --denoising-end, given like an image.",
        ),
    )


def _add_options(command: F, *options: Callable[[F], F]) -> F:
    for option in options:
        command = option(command)
    return command


def _parse_image(_context: click.Context, option: click.Parameter, text: str | None) -> Any:
    """Return a Path for a text that begins like one, else the text: an address or a key."""
    try:
        return None if text is None else path_or_address(str(option.name), text, Path())
    except InvalidRequest as error:
        raise click.BadParameter(f"{text} {error.limit}") from None

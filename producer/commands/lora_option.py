"""Define the option that chooses LoRA, for `submit` and `bulk run`."""

import click

from imagefleet.shared.jobs.lora_scales import parse_pairs


def _parse_loras(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> str | None:
    """Return the text of all options. Raise click.BadParameter if a scale is not a scale."""
    for text in texts:
        try:
            parse_pairs(text)
        except ValueError as error:
            raise click.BadParameter(f"{text}: {error}") from None
    return ",".join(texts) or None


lora_option = click.option(
    "--lora",
    "loras",
    multiple=True,
    callback=_parse_loras,
    metavar="NAME:SCALE",
    help="LoRA that the workers hold, and its scale (default 1); repeat the option for more.",
)

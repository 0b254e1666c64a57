"""Define the option that chooses LoRA, for `submit` and `bulk run`."""

import click

lora_option = click.option(
    "--lora",
    "loras",
    multiple=True,
    callback=lambda _context, _option, texts: ",".join(texts) or None,
    metavar="NAME:SCALE",
    help="LoRA that the workers hold, and its scale (default 1); repeat the option for more.",
)

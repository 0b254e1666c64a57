"""Define the option that weighs words of prompts, for `submit` and `bulk run`."""

import click

weighting_option = click.option(
    "--prompt-weighting",
    is_flag=True,
    default=None,
    help="Weigh words by brackets, as in (blue:1.3), and read long prompts in chunks.",
)

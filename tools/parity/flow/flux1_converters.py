"""Let diffusers' converters of LoRA files read those of the tiny FLUX.1.

This runs in the environment of `make parity`.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from diffusers.loaders import lora_conversion_utils, lora_pipeline

from tools.parity.flow.flux1_case import TRANSFORMER
from tools.parity.flow.flux1_loras import WIDTH


@contextmanager
def narrow_converters() -> Iterator[None]:
    """Replace the widths and the numbers of blocks that the converters have as constants, which are
    those of the published transformer."""
    numbers = {
        "[3072, 3072, 3072, 12288]": f"[{WIDTH}, {WIDTH}, {WIDTH}, {4 * WIDTH}]",
        "inner_dim = 3072": f"inner_dim = {WIDTH}",
        "num_layers = 19": f"num_layers = {TRANSFORMER['num_layers']}",
        "num_single_layers = 38": f"num_single_layers = {TRANSFORMER['num_single_layers']}",
    }
    with ExitStack() as patches:
        for name in (
            "_convert_kohya_flux_lora_to_diffusers",
            "_convert_fal_kontext_lora_to_diffusers",
        ):
            source = inspect.getsource(getattr(lora_conversion_utils, name))
            for published, tiny in numbers.items():
                source = source.replace(published, tiny)
            scope = dict(vars(lora_conversion_utils))
            exec(source, scope)
            patches.enter_context(patch.object(lora_pipeline, name, scope[name]))
        yield

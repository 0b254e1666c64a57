"""Let diffusers' converters of LoRA files and of single files read those of the tiny FLUX.1.

This runs in the environment of `make parity`.
"""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from diffusers.loaders import lora_conversion_utils, lora_pipeline, single_file_utils
from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

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

    def narrow(module: ModuleType, name: str) -> Any:
        source = inspect.getsource(getattr(module, name))
        for published, tiny in numbers.items():
            source = source.replace(published, tiny)
        scope = dict(vars(module))
        exec(source, scope)
        return scope[name]

    of_file = SINGLE_FILE_LOADABLE_CLASSES["FluxTransformer2DModel"]
    converter = narrow(single_file_utils, "convert_flux_transformer_checkpoint_to_diffusers")
    with ExitStack() as patches:
        patches.enter_context(patch.dict(of_file, checkpoint_mapping_fn=converter))
        for name in (
            "_convert_kohya_flux_lora_to_diffusers",
            "_convert_fal_kontext_lora_to_diffusers",
        ):
            converter = narrow(lora_conversion_utils, name)
            patches.enter_context(patch.object(lora_pipeline, name, converter))
        yield

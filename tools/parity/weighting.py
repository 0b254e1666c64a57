"""States of prompts with weights, as the community pipeline lpw_stable_diffusion makes them.

Input: that file of diffusers, `examples/community/lpw_stable_diffusion.py`, and a checkpoint of
`make_parity_fixtures`. Output: named tensors: the states of each prompt and its negative prompt.
"""

import ast
import logging
import re
from pathlib import Path
from typing import Any, List, Optional, Union  # noqa: UP035 - the file's functions name them

import torch
from diffusers import DiffusionPipeline
from diffusers.loaders import StableDiffusionLoraLoaderMixin

from tools.parity.checkpoints import Tensors
from tools.parity.weighted_prompts import CASES, MAX_CHUNKS


@torch.no_grad()
def weighted_states(pipeline_file: Path, folder: Path) -> Tensors:
    """Return `text.I` and `negative.I` for each case, `[tokens, channels]`."""
    pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    embed = _functions(pipeline_file)["get_weighted_text_embeddings"]
    tensors: Tensors = {}
    for index, (prompt, negative) in enumerate(CASES):
        text, unguided = embed(pipeline, prompt, negative, max_embeddings_multiples=MAX_CHUNKS)
        tensors[f"text.{index}"] = text[0].clone().contiguous()
        tensors[f"negative.{index}"] = unguided[0].clone().contiguous()
    return tensors


def _functions(pipeline_file: Path) -> dict[str, Any]:
    """Return the functions of the file and its pattern.

    What else it imports and defines needs a diffusers of 2022.
    """
    tree = ast.parse(pipeline_file.read_text())
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "re_attention")
    ]
    names: dict[str, Any] = {
        "DiffusionPipeline": DiffusionPipeline,
        "StableDiffusionLoraLoaderMixin": StableDiffusionLoraLoaderMixin,
        "USE_PEFT_BACKEND": False,  # there is no LoRA to scale
        "List": List,  # noqa: UP006
        "Optional": Optional,
        "Union": Union,
        "logger": logging.getLogger(__name__),
        "re": re,
        "torch": torch,
    }
    exec(compile(tree, str(pipeline_file), "exec"), names)
    return names

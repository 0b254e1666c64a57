"""Answer questions in diffusers' environment, one JSON object a line.

The other side is `tools.parity.truth_process`.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from tools.parity.text_model import restore_text_model


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer each line of the input until it ends."""
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(50)
    diffusers.utils.logging.set_verbosity(50)
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    restore_text_model()
    # Libraries print, too; the answers go to the first standard output only.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for count, line in enumerate(sys.stdin):
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        if count % 50 == 0:
            gc.collect()


def first_line(error: Exception, folder: str | None = None) -> str:
    """Return an error of diffusers or transformers in one line.

    Args:
        folder: It stands there as CHECKPOINT.
    """
    first = next(iter(str(error).strip().splitlines()), "")
    if folder is not None:
        first = first.replace(folder, "CHECKPOINT")
    return f"{type(error).__name__}: {first[:200]}"

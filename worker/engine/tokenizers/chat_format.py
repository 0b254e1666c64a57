"""Say how Qwen3 writes one prompt as a chat (Yang et al. 2025, section 4.3).

Input: the chat template of a checkpoint, a program in Jinja. Output: the texts before and after a
prompt. The template is compared with what Qwen3's does to one message of a user; it is never run,
because a file of a checkpoint must not bring code (docs/decisions/0023).
"""

import re
from typing import Any, Final, NamedTuple

from imagefleet.shared.errors import CheckpointError
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles

_BEFORE: Final = "<|im_start|>user\n"
_AFTER: Final = "<|im_end|>\n<|im_start|>assistant\n"
_NO_THOUGHT: Final = "<think>\n\n</think>\n\n"
"""Without thinking, the answer begins with a thought that is empty."""

_MESSAGE: Final = re.compile(
    r"\{\{-?'<\|im_start\|>'\+message\.role\+'\\n'\+(message\.)?content"
    r"\+'<\|im_end\|>'\+'\\n'-?\}\}"
)
"""So Qwen3's template writes a message of a user. Blanks are left out here and below."""
_END: Final = re.compile(
    r"\{%-?ifadd_generation_prompt-?%\}\{\{-?'<\|im_start\|>assistant\\n'-?\}\}"
    r"\{%-?ifenable_thinkingisdefinedandenable_thinkingisfalse-?%\}"
    r"\{\{-?'<think>\\n\\n</think>\\n\\n'-?\}\}\{%-?endif-?%\}\{%-?endif-?%\}$"
)
"""So it begins the answer."""
_OWN_SYSTEM_MESSAGE: Final = re.compile(r"'<\|im_start\|>system\\n[^']")
"""So other templates, as that of Qwen2.5, begin a chat that has no system message."""


class ChatFormat(NamedTuple):
    """It has the texts around a prompt."""

    before: str
    after: str

    def wrap(self, prompt: str) -> str:
        """Return the prompt as a chat."""
        return self.before + prompt + self.after


def read_chat_format(
    files: CheckpointFiles, folder: str, config: dict[str, Any], *, thinks: bool
) -> ChatFormat:
    """Check the chat template of a tokenizer, and return the texts around a prompt.

    Args:
        files: The files of the checkpoint.
        folder: The tokenizer's folder.
        config: Its tokenizer_config.json.
        thinks: Whether the pipeline lets the answer begin with a thought (`enable_thinking`).

    Raises:
        CheckpointError: there is no template, or it is not that of Qwen3.
    """
    name = f"{folder}/chat_template.jinja"
    if (files.folder / name).is_file():
        template: Any = files.use(name).read_text(encoding="utf-8")
    else:
        name, template = f"{folder}/tokenizer_config.json", config.get("chat_template")
    if not isinstance(template, str):
        raise CheckpointError(
            f"{name}: chat_template is missing or not one text; take the tokenizer of Qwen3"
        )
    dense = re.sub(r"\s+", "", template)
    for found, part in (
        (_MESSAGE.search(dense), "the message of a user"),
        (_END.search(dense), "the beginning of the answer"),
        (not _OWN_SYSTEM_MESSAGE.search(dense), "a chat without a system message"),
    ):
        if not found:
            raise CheckpointError(
                f"{name}: the chat template does not write {part} as that of Qwen3 does, and "
                "templates are never run here; take the tokenizer of Qwen3"
            )
    return ChatFormat(_BEFORE, _AFTER if thinks else _AFTER + _NO_THOUGHT)

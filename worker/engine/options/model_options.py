"""What a host chooses beside the checkpoint. It is a record; nothing is read or checked here."""

from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption

MAX_PROMPT_CHUNKS: Final = 8
"""600 tokens. A prompt has at most 4,000 characters."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What the host chooses beside the checkpoint."""

    scheduler: str | None = None
    """The scheduler of jobs that name none. None: that of the checkpoint."""
    safety_checker: bool = True
    """Whether to run the model's safety checker, if it has one."""
    loras: tuple[LoraOption, ...] = ()
    """Files that are merged into the weights."""
    job_loras: tuple[LoraOption, ...] = ()
    """Files of which each job chooses, with its own scales. Their own scales are 1."""
    textual_inversions: tuple[TextualInversionOption, ...] = ()
    """Files whose vectors are read into the text encoders."""
    prompt_chunks: int = 0
    """The most chunks of a prompt with `prompt_weighting`. 0: no such prompts."""
    streams: bool = False
    """Whether the devices will run streams (`open_streams`) instead of whole batches (`warm`). They
    need more memory for one image a device and less for several."""

"""Define what a host chooses beside the checkpoint. Nothing is read or checked here."""

import re
from dataclasses import dataclass
from typing import Final

from imagefleet.worker.engine.options.control_net_options import ControlNetOption
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption

LICENSE_NAME: Final = re.compile(r"[\w.+()/ -]{1,100}")
"""A worker announces names of licences that look like this."""
TEXT_ENCODER_3: Final = "text_encoder_3"
MAX_PROMPT_CHUNKS: Final = 8
"""This many chunks have 600 tokens. A prompt has at most 4,000 characters."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """It has what the host chooses beside the checkpoint."""

    scheduler: str | None = None
    """Jobs that name no scheduler get this one. None means that they get that of the checkpoint."""
    safety_checker: bool = True
    """Whether to run the model's safety checker, if it has one."""
    text_encoder_3: bool = True
    """Whether to read the model's third text encoder, T5, if it has one."""
    loras: tuple[LoraOption, ...] = ()
    """These files are merged into the weights."""
    job_loras: tuple[LoraOption, ...] = ()
    """Each job chooses from these files, with its own scales. The scales in these options are 1."""
    control_nets: tuple[ControlNetOption, ...] = ()
    """Each job may choose one of these."""
    textual_inversions: tuple[TextualInversionOption, ...] = ()
    """The vectors of these files are read into the text encoders."""
    prompt_chunks: int = 0
    """A prompt with `prompt_weighting` has at most this many chunks. 0 means that there are no such
    prompts."""
    model_license: str | None = None
    """None means that the licence is the one that the model's card states, if any."""
    int8_weights: bool = False
    """Whether the weights of the blocks of text encoder and denoiser are integers of 8 bits, with a
    scale for each output channel."""
    host_text_encoder: bool = False
    """Whether the host's CPU encodes texts, and the devices do not have the text encoder."""
    text_cache_bytes: int = 0
    """Encoded texts are kept in this many bytes of the host, if the family's text encoder takes
    long."""
    streams: bool = False
    """Whether the devices will run streams (`open_streams`) instead of whole batches (`warm`).
    Streams need more memory for one image a device and less for several."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the parts of the checkpoint that are not read, as if it did not have them."""
        safety = () if self.safety_checker else ("safety_checker",)
        return safety if self.text_encoder_3 else (*safety, TEXT_ENCODER_3, "tokenizer_3")

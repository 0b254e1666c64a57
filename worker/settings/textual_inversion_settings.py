"""The setting of a worker that names the files of textual inversions."""

from typing import Self

from pydantic import Field

from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.settings.callback_settings import CommaSeparated
from imagefleet.worker.settings.lora_settings import LoraSettings


class TextualInversionSettings(LoraSettings):
    """The setting of textual inversions, after those of LoRA."""

    textual_inversion: CommaSeparated = Field(
        default=(),
        description="Textual inversions, by the tokens that stand for them in prompts, as in "
        "`<cat>=/embeddings/cat.safetensors,b=…`. Default: none.",
    )

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Load as `LoraSettings.load` does, then check the options.

        Raises:
            ConfigurationError: it names the variable or the override that is wrong.
        """
        settings = super().load(**overrides)
        settings.textual_inversions()
        settings.refuse_with_models("textual_inversion")
        return settings

    def textual_inversions(self) -> tuple[TextualInversionOption, ...]:
        """Parse `textual_inversion`. Raises ConfigurationError."""
        return TextualInversionOption.parse_all(self.textual_inversion)

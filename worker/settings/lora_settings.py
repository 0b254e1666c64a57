"""The settings of a worker that name LoRA files."""

from typing import Self

from pydantic import Field

from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.settings.callback_settings import CommaSeparated
from imagefleet.worker.settings.model_settings import ModelSettings


class LoraSettings(ModelSettings):
    """The settings of LoRA, after those of models."""

    lora: CommaSeparated = Field(
        default=(),
        description="LoRA files to merge, as in `a=/loras/a.safetensors:0.8,b=…`. Default: none.",
    )
    job_lora: CommaSeparated = Field(
        default=(),
        description="LoRA files that jobs may use, by the names that jobs give, as in "
        "`a=/loras/a.safetensors,b=…`. All of them stay on the devices. Default: none.",
    )

    @classmethod
    def load(cls, **overrides: object) -> Self:
        """Load as `ModelSettings.load` does, then check the options.

        Raises:
            ConfigurationError: it names the variable or the override that is wrong.
        """
        settings = super().load(**overrides)
        settings.merged_loras()
        settings.job_loras()
        settings.refuse_with_models("lora", "job_lora")
        return settings

    def merged_loras(self) -> tuple[LoraOption, ...]:
        """Parse `lora`. Raises ConfigurationError."""
        return LoraOption.parse_all(self.lora)

    def job_loras(self) -> tuple[LoraOption, ...]:
        """Parse `job_lora`. Raises ConfigurationError."""
        return LoraOption.parse_job_loras(self.job_lora)

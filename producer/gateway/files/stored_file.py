"""Define the record of a file that a caller uploaded, or that a batch wrote."""

from typing import Any, Final

from pydantic import ConfigDict, Field

from imagefleet.shared.jobs.model import Count, Model, Time

OPENAI_PREFIX: Final = "file-"
"""Ids of files begin so if they were uploaded as OpenAI's API takes them."""
REPLICATE_PREFIX: Final = "upload-"
"""Ids of files begin so if they were uploaded as Replicate's API takes them."""
OUTPUT_PURPOSE: Final = "batch_output"
"""It is the purpose of files that a batch wrote."""


class StoredFile(Model):
    """A file in the fleet's store has this record."""

    model_config = ConfigDict(extra="ignore")  # newer releases may write more fields
    id: str
    name: str
    """The caller gave this name."""
    purpose: str = ""
    """It is one of OpenAI's purposes; '' for an upload of Replicate's."""
    content_type: str
    size: Count
    """It counts the bytes of the file."""
    sha256: str
    """The digest is hexadecimal."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    created_at: Time
    expires_at: Time
    """From this time on the file is unknown."""

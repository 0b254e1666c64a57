"""Define what a worker reports of the encoded texts that its engine keeps."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TextCacheUse:
    """It counts since the engine was loaded. A text that several images of a batch share counts
    once."""

    hits: int = 0
    """This many texts were found."""
    misses: int = 0
    """This many texts were encoded."""
    stored: int = 0
    """This many texts were found in the store that hosts share."""
    bytes: int = 0
    """The states that are kept now have this many bytes."""

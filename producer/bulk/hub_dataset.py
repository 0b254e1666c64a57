"""Open a dataset of the Hugging Face Hub as a stream of rows, with the library `datasets`.

hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT] goes in; a table comes out. Nothing is downloaded
before its rows are read.
"""

import re
from typing import Any, Final

from imagefleet.producer.bulk.readers import Table, open_iterable
from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.shared.extras import how_to_install

_FORM: Final = "hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT]"
_NAME: Final = r"[A-Za-z0-9][\w.-]*"
_ADDRESS: Final = re.compile(
    rf"hf://datasets/(?P<path>{_NAME}(/{_NAME})?)(@(?P<revision>[\w.-]+))?"
    r"(/(?P<name>[^/:@]+))?(:(?P<split>[^/:@]+))?"
)
_DEFAULT_SPLIT: Final = "train"


def open_hub_dataset(url: str) -> Table:
    """Open the dataset at `url`, which is read as a stream. Images stay files.

    Raises:
        InvalidRequest: the address is wrong, or the Hub has no such dataset, config or split.
        ConfigurationError: `datasets` is not installed.
    """
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise InvalidRequest("input", url, f"must be {_FORM}")
    try:
        from datasets import Image, load_dataset
    except ImportError:
        raise ConfigurationError(f"hf:// needs datasets; {how_to_install('hub')}") from None
    named = {key: value for key, value in parts.groupdict().items() if value is not None}
    try:
        rows: Any = load_dataset(**{"split": _DEFAULT_SPLIT, **named}, streaming=True)
    except Exception as error:  # of many libraries, down to those that read the files
        sentence = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InvalidRequest("input", url, f"cannot be opened: {sentence}") from None
    for column, feature in (rows.features or {}).items():
        if isinstance(feature, Image):  # its file gives the same digest each time
            rows = rows.cast_column(column, Image(decode=False))
    return open_iterable(rows, url)

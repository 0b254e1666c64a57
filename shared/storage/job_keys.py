"""Name the objects of a job. A key depends on the job id and the image index only, so a second
attempt overwrites the objects of the first.

jobs/<job id>/<image index>.png     the image (or .webp, .jpg; latents are .safetensors)
jobs/<job id>/<image index>.json    its metadata
inputs/<SHA-256>.png                an image that a client uploaded to start from (likewise)
"""

from typing import Final

_JOBS: Final = "jobs"
_INPUTS: Final = "inputs"
FOLDERS: Final = (_JOBS, _INPUTS)
"""The folders of a store that belong to jobs."""


def job_folder(job_id: str) -> str:
    """Return the folder of all objects of a job."""
    return f"{_JOBS}/{job_id}"


def image_key(job_id: str, index: int, extension: str) -> str:
    """Return the key of an image."""
    return f"{job_folder(job_id)}/{index}.{extension}"


def metadata_key(job_id: str, index: int) -> str:
    """Return the key of an image's metadata."""
    return f"{job_folder(job_id)}/{index}.json"


def input_key(sha256: str, extension: str) -> str:
    """Return the key of an uploaded image. Equal files have one key, so each is stored once."""
    return f"{_INPUTS}/{sha256}.{extension}"

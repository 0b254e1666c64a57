"""Name the objects of jobs and uploads. Those of a job depend on the job id and the image index
only, so a second attempt overwrites the objects of the first.

jobs/<job id>/<image index>.png     the image (or .webp, .jpg; latents are .safetensors)
jobs/<job id>/<image index>.json    its metadata
inputs/<SHA-256>.png                an image that a client uploaded to start from (likewise)
uploads/<folder>/<file id>          a file that a caller of the HTTP gateway uploaded
"""

from typing import Final

_JOBS: Final = "jobs"
_INPUTS: Final = "inputs"
_UPLOADS: Final = "uploads"
FOLDERS: Final = (_JOBS, _INPUTS, _UPLOADS)
"""The folders of a store that belong to jobs and uploads, so that no dataset may lie there."""


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


def upload_key(folder: str, file_id: str) -> str:
    """Return the key of a file that a caller of the HTTP gateway uploaded.

    Args:
        folder: that of the caller's tenant, which others cannot guess.
    """
    return f"{_UPLOADS}/{folder}/{file_id}"

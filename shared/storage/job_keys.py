"""Object keys, from the job id and the image index alone: a second attempt writes over the first.

jobs/<job id>/<image index>.png     the picture
jobs/<job id>/<image index>.json    how it came to be
"""


def image_key(job_id: str, index: int, extension: str) -> str:
    return f"jobs/{job_id}/{index}.{extension}"


def metadata_key(job_id: str, index: int) -> str:
    return f"jobs/{job_id}/{index}.json"

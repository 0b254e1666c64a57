"""Object keys depend on the job id and the image index only."""

from imagefleet.shared.storage.base import check_key
from imagefleet.shared.storage.job_keys import image_key, metadata_key


def test_an_image_and_its_metadata_have_neighbouring_keys() -> None:
    assert image_key("cat-1", 0, "png") == "jobs/cat-1/0.png"
    assert metadata_key("cat-1", 0) == "jobs/cat-1/0.json"


def test_every_valid_job_id_makes_a_valid_key() -> None:
    for job_id in ("a" * 128, "0._-..-", "A..b"):
        assert check_key(image_key(job_id, 63, "webp"))


def test_no_two_images_share_a_key() -> None:
    ids = ["a", "a.0", "a-0", "a0"]
    keys = {image_key(job_id, index, "png") for job_id in ids for index in range(3)}
    assert len(keys) == 12

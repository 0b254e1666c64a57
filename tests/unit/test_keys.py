"""Object keys come from the job id and the image index alone."""

from imagefleet.shared.storage.base import check_key
from imagefleet.shared.storage.job_keys import image_key, metadata_key


def test_a_picture_and_its_document_stand_side_by_side() -> None:
    assert image_key("cat-1", 0, "png") == "jobs/cat-1/0.png"
    assert metadata_key("cat-1", 0) == "jobs/cat-1/0.json"


def test_the_longest_and_oddest_job_id_makes_a_key_that_stores_take() -> None:
    for job_id in ("a" * 128, "0._-..-", "A..b"):
        assert check_key(image_key(job_id, 63, "webp"))


def test_no_two_images_share_a_key() -> None:
    ids = ["a", "a.0", "a-0", "a0"]
    keys = {image_key(job_id, index, "png") for job_id in ids for index in range(3)}
    assert len(keys) == 12

"""Test your own code that submits jobs and reads their images, without a server and a worker.

    pip install "imagefleet-….whl[testing]" pytest
    pytest examples/unit_test_with_fake_fleet.py

The fake fleet runs in the process of the test. Its client is the real one, and its images are
gradients of one colour. What fails in a real fleet can be made to fail here.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet import Client, InvalidRequest, JobFailed
from imagefleet.testing import FakeFleet


def illustrate(client: Client, title: str, folder: Path) -> Path | None:
    """Save an illustration of a chapter; None if there is none. This is the function under test."""
    try:
        result = client.submit(f"an illustration of {title}", num_inference_steps=8).result(60)
    except JobFailed:
        return None
    return result.images[0].save(folder / f"{title}.png")


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        yield fleet


def test_an_illustration_is_saved(fleet: FakeFleet, tmp_path: Path) -> None:
    path = illustrate(fleet.client, "the storm", tmp_path)
    assert path == tmp_path / "the storm.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_chapter_whose_job_fails_has_no_illustration(fleet: FakeFleet, tmp_path: Path) -> None:
    fleet.fail("the storm", "device_error")
    assert illustrate(fleet.client, "the storm", tmp_path) is None
    assert illustrate(fleet.client, "the island", tmp_path) is not None


def test_a_shape_that_no_worker_has_is_refused(fleet: FakeFleet) -> None:
    with pytest.raises(InvalidRequest, match="it serves 64x64"):
        fleet.client.submit("a red star", height=512, width=512)

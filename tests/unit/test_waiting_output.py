"""What `--wait` and `wait` print of the images that they save."""

import json
from pathlib import Path

import pytest

from imagefleet.producer.commands.waiting import wait_for_jobs
from imagefleet.testing import FakeFleet


def test_json_has_the_paths_of_the_saved_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeFleet() as fleet:
        fleet.fail("b")
        jobs = [fleet.client.submit(prompt, num_images_per_prompt=2) for prompt in "ab"]
        assert wait_for_jobs(fleet.client, jobs, 60, tmp_path, as_json=True) == 1
    printed = capsys.readouterr()
    rows = {row["id"]: row for row in map(json.loads, printed.out.splitlines())}
    paths = [Path(path) for path in rows[jobs[0].id]["paths"]]
    assert [path.parent for path in paths] == [tmp_path, tmp_path]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert (rows[jobs[1].id]["state"], rows[jobs[1].id]["paths"]) == ("failed", [])
    assert jobs[1].id in printed.err


def test_json_has_no_paths_if_nothing_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeFleet() as fleet:
        job = fleet.client.submit("a")
        assert wait_for_jobs(fleet.client, [job], 60, None, as_json=True) == 0
    assert "paths" not in json.loads(capsys.readouterr().out)

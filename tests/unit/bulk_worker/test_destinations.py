"""A worker writes datasets only where its operator allows it."""

from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError, InvalidRequest
from imagefleet.worker.bulk.destinations import DestinationPolicy

MINIO = "s3://images?endpoint_url=http://minio:9000"


@pytest.mark.parametrize(
    ("storage", "allowed", "destination"),
    [
        (MINIO, (), "s3://data/x?endpoint_url=http://minio:9000"),
        (MINIO, (), "s3://data/x?endpoint_url=HTTP://MinIO.:9000/"),
        (MINIO, (), "s3://data/x?region=eu-west-1"),
        (MINIO, ("https://other",), "s3://data/x?endpoint_url=https://other:443"),
        (MINIO, ("/mnt/data",), "file:///mnt/data/x"),
        (MINIO, ("file:///mnt/my%20data",), "file:///mnt/my%20data/x"),
        ("s3://images", (), "s3://data/x"),
        ("file://./out", (), "file:///anywhere"),
        ("file://./out", (), "s3://data/x"),
        ("file://./out", ("./data",), f"{Path.cwd().as_uri()}/data/x"),
        ("file:///out", (), "file:///out"),
        (MINIO, (), "gs://data/x"),
        ("gs://images/run-1", (), "gs://images/jobs"),
        ("gs://images", (), "s3://images/jobs"),
        ("file:///out", (), "file:///out/jobs-1"),
        ("s3://images/run-1", (), "s3://images/jobs/x"),
        ("s3://images", (), "s3://data/jobs/x"),
        (MINIO, (), "s3://images/jobs/x"),  # a bucket of AWS
    ],
)
def test_allowed_destinations(storage: str, allowed: tuple[str, ...], destination: str) -> None:
    DestinationPolicy.parse(storage, allowed).check(destination)


@pytest.mark.parametrize(
    ("storage", "allowed", "destination", "sentence"),
    [
        (MINIO, (), "s3://data?endpoint_url=http://127.0.0.1:9000", "IMAGEFLEET_BULK_ALLOW"),
        (MINIO, (), "s3://data?endpoint_url=https://minio:9000", "credentials to that endpoint"),
        (MINIO, (), "s3://data?endpoint_url=http://minio:9001", "credentials to that endpoint"),
        (MINIO, (), "s3://d?endpoint_url=http://minio:9000&endpoint_url=http://x", "endpoint"),
        (MINIO, (), "s3://d?endpoint_url=http://a:hunter2@minio:9000", "address of a store"),
        ("s3://images", (), "s3://data?endpoint_url=http://minio:9000", "that endpoint"),
        (MINIO, (), "file:///tmp/x", "does not write to that folder"),
        (MINIO, ("/mnt/data",), "file:///mnt/data2", "does not write to that folder"),
        (MINIO, ("/mnt/data",), "file:///mnt/data/../other", "does not write to that folder"),
        (MINIO, ("/mnt/data",), "file:///mnt/data/%2e%2e/other", "does not write to that folder"),
        ("file://./out", ("./data",), "file:///etc", "does not write to that folder"),
        (MINIO, ("/",), "memory://", "must be an s3://, gs:// or file:// address"),
        (MINIO, ("/",), "", "must be an s3://, gs:// or file:// address"),
        (MINIO, ("/",), "file://server/x", "is not the address of a store"),
        (MINIO, ("/",), "file:///x\0", "is not the address of a store"),
        (MINIO, (), "s3://data?endpoint_url=http://[", "is not the address of a store"),
        ("gs://images/run-1", (), "gs://images/run-1/jobs/x", "jobs/ of the image store"),
        ("file:///out", (), "file:///out/jobs", "jobs/ of the image store"),
        ("file:///out", (), "file:///out/x/../inputs/x", "inputs/ of the image store"),
        ("s3://images/run-1/", (), "s3://images/run-1/jobs/x?region=a", "jobs/ of the image store"),
        (MINIO, (), "s3://images/jobs?endpoint_url=http://minio:9000/", "jobs/ of the image store"),
    ],
)
def test_refused_destinations(
    storage: str, allowed: tuple[str, ...], destination: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        DestinationPolicy.parse(storage, allowed).check(destination)
    assert "hunter2" not in str(refused.value)


def test_a_symbolic_link_does_not_lead_out_of_an_allowed_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("/etc")
    policy = DestinationPolicy.parse(MINIO, (str(tmp_path / "data"),))
    policy.check((tmp_path / "data" / "x").as_uri())
    with pytest.raises(InvalidRequest, match="does not write to that folder"):
        policy.check((tmp_path / "data" / "link").as_uri())


@pytest.mark.parametrize("entry", ["minio:9000", "http://", "http://a:hunter2@minio", "data"])
def test_a_wrong_entry_is_a_configuration_error(entry: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^IMAGEFLEET_BULK_ALLOW: ") as refused:
        DestinationPolicy.parse("file://./out", (entry,))
    assert "hunter2" not in str(refused.value)

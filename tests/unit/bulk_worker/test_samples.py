"""Samples in the spool, in archives and in checkpoints."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace

import pyarrow
import pytest
from pyarrow import parquet

from imagefleet.shared.bulk.file_layout import archive_key, file_key, parquet_key
from imagefleet.shared.bulk.plan import BulkFormat, ShardPlan
from imagefleet.shared.bulk.stats import RowFailure
from imagefleet.shared.errors import PlanDamaged
from imagefleet.shared.storage import ObjectStore, open_store
from imagefleet.worker.bulk.samples import Sample, Spool
from imagefleet.worker.bulk.shard_checkpoints import ShardCheckpoints, delete_checkpoints
from imagefleet.worker.bulk.shard_formats import put_shard
from imagefleet.worker.bulk.tar import read_tar, write_tar


def _sample(row: int, size: int = 40) -> Sample:
    image = bytes([row % 256]) * size
    document = {"prompt": f"p\n{row} é", "sha256": hashlib.sha256(image).hexdigest()}
    return Sample(key=f"{row:09d}-00", image=image, extension="png", document=document)


def _checkpoints(
    store: ObjectStore,
    name: str,
    sha256: str = "abc" * 20,
    file_format: BulkFormat = BulkFormat.WEBDATASET,
    check_may_save: Callable[[], object] = lambda: None,
) -> ShardCheckpoints:
    shard = ShardPlan(name=name, rows=1, samples=1, sha256=sha256)
    return ShardCheckpoints(store, shard, file_format, check_may_save)


def _accept_all(sample: Sample) -> Sample:
    return sample


def _tar(samples: list[Sample]) -> bytes:
    file = io.BytesIO()
    write_tar(samples, file)
    return file.getvalue()


@pytest.fixture
def store() -> ObjectStore:
    return open_store("memory://")


def test_an_archive_can_be_written_and_read_again() -> None:
    samples = [_sample(0, 0), _sample(1, 511), _sample(2, 512), _sample(3, 100_000)]
    assert list(read_tar(io.BytesIO(_tar(samples)))) == samples


def test_the_same_samples_make_the_same_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _tar([_sample(1)])
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setenv("USER", "somebody-else")
    assert _tar([_sample(1)]) == first


@pytest.mark.parametrize("cut", [100, 600, 1100, 1700, 2048])
def test_reading_a_truncated_archive_raises(cut: int) -> None:
    with pytest.raises((tarfile.TarError, KeyError, ValueError)):
        list(read_tar(io.BytesIO(_tar([_sample(0)])[:cut])))


def test_a_spool_yields_each_sample_once_in_the_order_of_rows() -> None:
    with Spool() as spool:
        for row in (5, 2, 9, 2):
            spool.add(_sample(row))
        assert len(spool) == 3
        assert list(spool) == [_sample(2), _sample(5), _sample(9)]
        assert _sample(9).key in spool
        assert _sample(1).key not in spool


def test_checkpoints_can_be_saved_and_loaded(store: ObjectStore) -> None:
    failure = RowFailure(row=7, samples=1, code="device_error", message="broke")
    checkpoints = _checkpoints(store, "00003")
    checkpoints.save([_sample(1), _sample(0)], [])
    checkpoints.save([_sample(2)], [failure])
    with Spool() as spool:
        assert _checkpoints(store, "00003").load(spool, _accept_all) == [failure]
        assert list(spool) == [_sample(0), _sample(1), _sample(2)]
    with Spool() as other:
        assert _checkpoints(store, "00004").load(other, _accept_all) == []
        assert len(other) == 0


def test_a_sparse_file_in_an_archive_is_not_read() -> None:
    """Few bytes of an archive would become a terabyte of zeros."""
    file = io.BytesIO()
    info = tarfile.TarInfo("000000000-00.png")
    info.pax_headers = {"GNU.sparse.map": "0,0", "GNU.sparse.size": str(1 << 40)}
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    with pytest.raises(ValueError, match="not a plain file"):
        list(read_tar(io.BytesIO(file.getvalue())))


def test_checkpoints_that_are_too_large_are_not_loaded(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = _checkpoints(store, "00000")
    checkpoints.save([_sample(0)], [RowFailure(row=1, samples=1, code="x", message="x")])
    checkpoints.record_suspect_row(1, 1)
    for limit in ("MAX_BINARY_BYTES", "MAX_TEXT_BYTES"):
        monkeypatch.setattr(f"imagefleet.worker.bulk.shard_checkpoints.{limit}", 10)
    with Spool() as spool:
        assert checkpoints.load(spool, _accept_all) == []
        assert list(spool) == []
    assert checkpoints.suspect_row() is None


def test_a_damaged_checkpoint_loses_only_its_own_samples(store: ObjectStore) -> None:
    checkpoints = _checkpoints(store, "00000")
    checkpoints.save([_sample(0)], [])
    checkpoints.save([_sample(1)], [])
    key = "parts/00000/abcabcabcabc/000000001-00-000000001-00.tar"
    store.put(key, store.get(key)[:700], "application/x-tar")
    with Spool() as spool:
        checkpoints.load(spool, _accept_all)
        assert list(spool) == [_sample(0)]


def test_a_sample_whose_image_does_not_match_its_document_is_not_loaded(store: ObjectStore) -> None:
    document = {"prompt": "p", "sha256": "0"}
    wrong = Sample(key="000000000-00", image=b"x", extension="png", document=document)
    store.put_file(archive_key("00000"), io.BytesIO(_tar([wrong])), "application/x-tar")
    with Spool() as spool:
        _checkpoints(store, "00000").load(spool, _accept_all)
        assert len(spool) == 0


def test_the_archive_of_a_shard_is_loaded_like_a_checkpoint(store: ObjectStore) -> None:
    store.put_file(archive_key("00000"), io.BytesIO(_tar([_sample(4)])), "application/x-tar")
    with Spool() as spool:
        _checkpoints(store, "00000").load(spool, _accept_all)
        assert list(spool) == [_sample(4)]


def _store_shard(store: ObjectStore, file_format: BulkFormat) -> list[Sample]:
    columns = {"num_inference_steps": 4, "guidance_scale": 7.5, "scheduler": "ddim", "extra": {}}
    samples = [
        replace(sample, document={**sample.document, **columns})
        for sample in (_sample(0), _sample(1, 70_000), _sample(2))
    ]
    with Spool() as spool:
        for sample in samples:
            spool.add(sample)
        put_shard(spool, "00000", file_format, store)
    return samples


def _load(store: ObjectStore, file_format: BulkFormat) -> list[Sample]:
    with Spool() as spool:
        assert _checkpoints(store, "00000", file_format=file_format).load(spool, _accept_all) == []
        return list(spool)


@pytest.mark.parametrize("file_format", BulkFormat)
def test_the_files_of_a_shard_are_loaded_like_a_checkpoint(
    store: ObjectStore, file_format: BulkFormat
) -> None:
    samples = _store_shard(store, file_format)
    assert _load(store, file_format) == samples
    for other in set(BulkFormat) - {file_format}:
        assert _load(store, other) == []


@pytest.mark.parametrize("at", range(0, 100, 10))
def test_a_damaged_parquet_file_loses_samples_and_not_the_attempt(
    store: ObjectStore, at: int
) -> None:
    """The damage begins at this share of the file, in percent."""
    samples = _store_shard(store, BulkFormat.PARQUET)
    data = store.get(parquet_key("00000"))
    start = len(data) * at // 100
    store.put(parquet_key("00000"), data[:start] + b"\xff" * 90 + data[start + 90 :], "any")
    assert all(sample in samples for sample in _load(store, BulkFormat.PARQUET))
    store.put(parquet_key("00000"), data[:start], "any")
    assert _load(store, BulkFormat.PARQUET) == []


def test_a_small_parquet_file_of_very_many_rows_is_not_read(store: ObjectStore) -> None:
    """It would keep a worker busy for hours."""
    sample = _sample(0)
    row = {
        "image": {"bytes": sample.image, "path": f"{sample.key}.png"},
        "metadata": json.dumps(sample.document),
    }
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist([row] * 10_000), file)
    store.put(parquet_key("00000"), file.getvalue(), "any")
    assert _load(store, BulkFormat.PARQUET) == []


def test_a_damaged_file_of_a_folder_loses_only_its_own_sample(store: ObjectStore) -> None:
    samples = _store_shard(store, BulkFormat.FILES)
    store.put(file_key("00000", "000000000-00.json"), b"{", "application/json")
    store.delete(file_key("00000", "000000001-00.png"))
    assert _load(store, BulkFormat.FILES) == samples[2:]


def test_checkpoints_of_another_plan_are_not_loaded(store: ObjectStore) -> None:
    failure = RowFailure(row=0, samples=1, code="device_error", message="broke")
    _checkpoints(store, "00000", "f" * 64).save([_sample(0)], [failure])
    store.put_file(archive_key("00000"), io.BytesIO(_tar([_sample(4)])), "application/x-tar")
    with Spool() as spool:
        assert _checkpoints(store, "00000").load(spool, lambda sample: None) == []
        assert len(spool) == 0


def test_nothing_is_written_where_another_plan_has_taken_the_store(store: ObjectStore) -> None:
    def refuse() -> None:
        raise PlanDamaged("the store holds another plan")

    checkpoints = _checkpoints(store, "00000", check_may_save=refuse)
    with pytest.raises(PlanDamaged):
        checkpoints.save([_sample(0)], [])
    with pytest.raises(PlanDamaged):
        checkpoints.record_suspect_row(3, 1)
    assert list(store.list()) == []


def test_all_checkpoints_of_a_finished_shard_are_deleted(store: ObjectStore) -> None:
    checkpoints = _checkpoints(store, "00000")
    checkpoints.save([_sample(0)], [])
    checkpoints.record_suspect_row(3, 1)
    assert checkpoints.suspect_row() == (3, 1)
    _checkpoints(store, "00001").save([_sample(1)], [])
    _checkpoints(store, "00000", "f" * 64).save([_sample(0)], [])
    delete_checkpoints(store, "00000")
    assert list(store.list()) == ["parts/00001/abcabcabcabc/000000001-00-000000001-00.tar"]

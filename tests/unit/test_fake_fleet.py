"""The fake fleet ends jobs as a real one does, in one process, without JAX and Celery."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefleet import InvalidRequest, Job, JobCancelled, JobFailed, State, UnknownJob
from imagefleet.testing import FakeFleet
from tests.support.processes import until

TIMEOUT_S = 60
CALLBACK = {"callback_url": "https://hooks.example/", "callback_events": ["started", "succeeded"]}


@pytest.fixture
def fleet() -> Iterator[FakeFleet]:
    with FakeFleet() as fleet:
        yield fleet


@pytest.fixture
def stepped() -> Iterator[FakeFleet]:
    with FakeFleet(auto=False) as fleet:
        yield fleet


def _failure_code(job: Job) -> str:
    with pytest.raises(JobFailed) as failed:
        job.result(TIMEOUT_S)
    return failed.value.failure_code


def test_a_submitted_job_succeeds_with_images_and_metadata(fleet: FakeFleet) -> None:
    job = fleet.client.submit("a red star", seed=7, num_images_per_prompt=2, metadata={"shot": 3})
    result = job.result(TIMEOUT_S)
    assert [image.open().size for image in result.images] == [(64, 64), (64, 64)]
    assert result.images[0].sha256 != result.images[1].sha256
    status = job.status()
    assert (status.state, status.deliveries, status.step, status.steps) == ("succeeded", 1, 4, 4)
    folder = Path(result.images[0].url.removeprefix("file://")).parent
    metadata_file = json.loads((folder / "0.json").read_text())
    assert (metadata_file["prompt"], metadata_file["seed"]) == ("a red star", 7)
    assert metadata_file["metadata"] == {"shot": 3}


def test_a_job_goes_on_with_the_latents_of_another(fleet: FakeFleet) -> None:
    [latents] = fleet.client.submit("a star", denoising_end=0.75).result(TIMEOUT_S).images
    assert (latents.format, latents.pixel_sha256) == ("safetensors", None)
    assert latents.key.endswith("/0.safetensors")
    finished = fleet.client.submit("a star", latents=latents.key, denoising_start=0.75)
    [image] = finished.result(TIMEOUT_S).images
    assert image.open().size == (64, 64)
    assert finished.status().steps == 1
    uploaded = fleet.client.submit("a star", latents=latents.read(), denoising_start=0.75)
    assert uploaded.result(TIMEOUT_S).images[0].format == "png"
    gone = fleet.client.submit("a star", latents="jobs/x/0.safetensors", denoising_start=0.75)
    assert _failure_code(gone) == "invalid_input"


def test_the_name_of_a_file_that_no_object_has_is_refused_at_once(
    fleet: FakeFleet, tmp_path: Path
) -> None:
    client, name = fleet.client, "nofile.png"
    for submit in (
        lambda: client.submit("a", image=name),
        lambda: client.submit_many([{"prompt": "a", "image": name}]),
        lambda: client.submit_many(["a", "b"], image=name),
    ):
        with pytest.raises(InvalidRequest) as refused:
            submit()
        assert (refused.value.field, refused.value.value) == ("image", "nofile.png")
        assert "there is no such object in file://" in refused.value.limit
        assert refused.value.limit.endswith(
            "for a file of this host give pathlib.Path('nofile.png')"
        )
    [made] = fleet.client.submit("a").result(TIMEOUT_S).images
    store = Path(made.url.removeprefix("file://").removesuffix(made.key))
    (store / "star.png").write_bytes(made.read())
    assert fleet.client.submit("b", image="star.png").result(TIMEOUT_S).images


def test_a_dataset_is_made_and_verified(fleet: FakeFleet, tmp_path: Path) -> None:
    prompts = [f"prompt {n}" for n in range(90)]
    run = fleet.client.bulk(prompts, tmp_path / "data", shard_size=40, format="files")
    ended = run.wait(TIMEOUT_S)
    assert (ended.state, ended.images, ended.failed_images) == (State.SUCCEEDED, 90, 0)
    texts = sorted((tmp_path / "data").glob("0000?/*.txt"))
    assert [path.read_text() for path in texts] == prompts
    assert {path.parent.name for path in texts} == {"00000", "00001", "00002"}
    report = run.verify(sample=2)
    assert (report.clean, report.present, report.regenerated) == (True, 90, 2)


def test_a_dataset_waits_for_the_test_and_its_rows_fail_as_told(
    stepped: FakeFleet, tmp_path: Path
) -> None:
    stepped.fail("star", "storage_unavailable")
    run = stepped.client.bulk(["a ring", "a star", "a dot"], tmp_path / "data")
    job = stepped.client.submit("a")
    assert run.status().shards_by_state[State.QUEUED] == 1
    assert stepped.run_all() == [job]
    assert (run.status().state, run.status().images) == (State.SUCCEEDED, 2)
    assert [(failed.row, failed.code) for failed in run.failures()] == [(1, "storage_unavailable")]


def test_the_receiver_of_a_dataset_would_be_told_of_it(stepped: FakeFleet, tmp_path: Path) -> None:
    hook = "https://hooks.example/x"
    prompts = [f"prompt {n}" for n in range(20)]
    run = stepped.client.bulk(prompts, tmp_path / "data", shard_size=10, callback_url=hook)
    stepped.run_all()
    events = stepped.callbacks()
    assert [each["data"]["sequence"] for each in events] == [*range(1, len(events) + 1)]
    kinds = [each["type"] for each in events]
    assert (kinds[0], set(kinds[1:-1]), kinds[-1]) == ("run.started", {"run.progress"}, "run.ended")
    assert {each["data"]["id"] for each in events} == {run.id}
    assert (events[-1]["data"]["state"], events[-1]["data"]["images"]) == ("succeeded", 20)


def test_a_dataset_that_a_fleet_may_not_write_fails_at_once(
    stepped: FakeFleet, tmp_path: Path
) -> None:
    run = stepped.client.bulk(["a ring"], tmp_path / "data")
    (tmp_path / "data" / "00000.tar").mkdir()  # where a file belongs
    stepped.run_all()
    ended = run.status()
    assert (ended.state, ended.errors[0].code) == (State.FAILED, "storage_denied")
    assert "there is a folder where the file belongs" in ended.errors[0].message


def test_a_closed_fleet_leaves_its_shard_queued(tmp_path: Path) -> None:
    with FakeFleet(step_s=0.05) as fleet:
        run = fleet.client.bulk([f"{n}" for n in range(500)], tmp_path / "data")
        until(lambda: run.status().shards_by_state[State.RUNNING])
        fleet._stopping.set()
        fleet._worker.stop()
        fleet._thread.join()
        with run.connection.runs(run.id) as records:
            assert records.get(run.id).shards_by_state[State.QUEUED] == 1


def test_equal_parameters_make_equal_pixels(fleet: FakeFleet) -> None:
    first, second = (fleet.client.submit("a red star", seed=7).result(TIMEOUT_S) for _ in range(2))
    assert first.images[0].pixel_sha256 == second.images[0].pixel_sha256


def test_jobs_wait_for_the_test_if_it_steps_by_hand(stepped: FakeFleet) -> None:
    late, first = (
        stepped.client.submit("a", priority=priority, num_inference_steps=2) for priority in (9, 0)
    )
    assert {late.status().state, first.status().state} == {State.QUEUED}
    assert stepped.run_next() == first
    assert (first.status().state, late.status().state) == (State.SUCCEEDED, State.QUEUED)
    assert stepped.run_all() == [late]
    assert stepped.run_next() is None


@pytest.mark.parametrize("code", ["device_error", "invalid_input", "storage_unavailable"])
def test_a_test_can_make_jobs_fail(stepped: FakeFleet, code: str) -> None:
    stepped.fail("star", code)
    star, ring = stepped.client.submit_many(["a red star", "a red ring"])
    stepped.run_all()
    assert (_failure_code(star), ring.status().state) == (code, State.SUCCEEDED)
    assert [letter.job_id for letter in stepped.client.dead_letters.read()] == [star.id]


def test_a_code_that_no_worker_reports_is_refused(fleet: FakeFleet) -> None:
    with pytest.raises(InvalidRequest, match=r"code='nonsense': must be one of device_error, "):
        fleet.fail("star", "nonsense")


@pytest.mark.parametrize(
    ("prompt", "code"), [("[fail]", "device_error"), ("[die]", "too_many_deliveries")]
)
def test_the_prompts_of_the_fake_engine_fail_their_job_only(
    fleet: FakeFleet, prompt: str, code: str
) -> None:
    assert _failure_code(fleet.client.submit(prompt)) == code
    assert fleet.client.submit("a red star").result(TIMEOUT_S)


def test_a_queued_job_can_be_cancelled(stepped: FakeFleet) -> None:
    job = stepped.client.submit("a red star", callback_url="https://hooks.example/")
    assert job.cancel() is State.CANCELLED
    assert stepped.run_all() == []
    assert [event["type"] for event in stepped.callbacks()] == ["job.cancelled"]


def test_a_running_job_can_be_cancelled() -> None:
    with FakeFleet(step_s=0.01, max_num_inference_steps=1000) as fleet:
        job = fleet.client.submit("a red star", num_inference_steps=1000, preview=True)
        until(lambda: job.status().preview)
        assert job.cancel() is State.RUNNING
        with pytest.raises(JobCancelled):
            job.result(TIMEOUT_S)


@pytest.mark.parametrize("prompt", ["[hang]", "a red star"])
def test_closing_ends_jobs_that_hang_or_take_long(prompt: str) -> None:
    with FakeFleet(step_s=0.5, max_num_inference_steps=1000) as fleet:
        job = fleet.client.submit(prompt, num_inference_steps=1000)
        until(lambda: job.status().state is State.RUNNING)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"model": "other"}, "no worker has offered this model; offered are mine"),
        ({"height": 64, "width": 64}, "it serves 512x768"),
        ({"scheduler": "ddim"}, "is not offered by the model mine; it offers euler"),
        ({"num_inference_steps": 30}, "must be at most 20 with the model mine"),
    ],
)
def test_what_the_fleet_does_not_offer_is_refused(
    parameters: dict[str, object], sentence: str
) -> None:
    with FakeFleet(
        auto=False,
        model="mine",
        shapes=[(512, 768)],
        schedulers=["euler"],
        max_num_inference_steps=20,
    ) as fleet:
        with pytest.raises(InvalidRequest, match=sentence):
            fleet.client.submit_many([{"prompt": "a", **parameters}])
        job = fleet.client.submit("a", model="mine")
        fleet.run_all()
        assert job.result().images[0].open().size == (768, 512)


def test_a_job_that_starts_too_late_expires(stepped: FakeFleet) -> None:
    job = stepped.client.submit("a", ttl=1e-6, callback_url="https://hooks.example/")
    assert stepped.run_all() == [job]
    assert _failure_code(job) == "expired"
    assert [event["type"] for event in stepped.callbacks()] == ["job.failed"]


def test_callbacks_are_kept_in_order_and_not_sent(fleet: FakeFleet) -> None:
    [job] = fleet.client.submit_many([{"prompt": "a", "metadata": {"shot": 3}, **CALLBACK}])
    job.result(TIMEOUT_S)
    events = fleet.callbacks()
    assert [event["type"] for event in events] == ["job.started", "job.succeeded"]
    assert (events[1]["data"]["id"], events[1]["data"]["metadata"]) == (job.id, {"shot": 3})


def test_a_job_starts_from_an_uploaded_image_but_fetches_none(fleet: FakeFleet) -> None:
    image = fleet.client.submit("a", seed=1).result(TIMEOUT_S).images[0]
    plain = fleet.client.submit("b", seed=1).result(TIMEOUT_S)
    from_image = fleet.client.submit("b", seed=1, image=image.open()).result(TIMEOUT_S)
    assert from_image.images[0].pixel_sha256 != plain.images[0].pixel_sha256
    fetched = fleet.client.submit("b", image="https://images.example/a.png")
    assert _failure_code(fetched) == "input_unavailable"


def test_the_client_for_asyncio_is_the_real_one(fleet: FakeFleet) -> None:
    async def run() -> list[State]:
        async with fleet.async_client() as client:
            jobs = await client.submit_many(["a", "[fail]"])
            return [(await job.status()).state async for job in client.as_completed(jobs)]

    assert sorted(asyncio.run(run())) == [State.FAILED, State.SUCCEEDED]


def test_fleets_know_nothing_of_each_other(fleet: FakeFleet, stepped: FakeFleet) -> None:
    job = fleet.client.submit("a")
    with pytest.raises(UnknownJob):
        stepped.client.get(job.id)


def test_a_folder_of_the_test_stays(tmp_path: Path) -> None:
    with FakeFleet(folder=tmp_path / "a store") as fleet:
        job = fleet.client.submit("a")
        temporary = job.result(TIMEOUT_S).images[0].url
    assert (tmp_path / "a store" / "jobs" / job.id / "0.png").is_file()
    assert temporary.endswith(f"/a%20store/jobs/{job.id}/0.png")


def test_the_temporary_folder_is_deleted(fleet: FakeFleet) -> None:
    image = fleet.client.submit("a").result(TIMEOUT_S).images[0]
    path = Path(image.url.removeprefix("file://"))
    assert path.is_file()
    fleet.close()
    assert not path.parents[2].exists()


def test_a_job_that_cannot_be_ended_does_not_run_for_ever(tmp_path: Path) -> None:
    with FakeFleet(auto=False, folder=tmp_path / "store") as fleet:
        fleet.client.submit("a")
        (tmp_path / "store").rmdir()
        (tmp_path / "store").write_text("no folder")
        with pytest.raises(Exception, match="cannot be ended, and is queued again"):
            fleet.run_all()


def test_a_job_succeeds_once_the_store_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeFleet(folder=tmp_path / "store") as fleet:
        (tmp_path / "store").rmdir()
        (tmp_path / "store").write_text("no folder")
        job = fleet.client.submit("a")
        until(lambda: "cannot be ended, and is queued again" in caplog.text)
        (tmp_path / "store").unlink()
        assert job.result(TIMEOUT_S).images


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout + done.stderr


def test_neither_jax_nor_celery_is_loaded() -> None:
    loaded = _run("import sys, imagefleet.testing; print(*sys.modules)").split()
    assert "fakeredis" in loaded
    assert not {"jax", "celery", "kombu", "boto3"} & {*loaded}


@pytest.mark.parametrize("missing", ["fakeredis", "lupa", "numpy", "PIL"])
def test_a_missing_package_is_reported_with_its_extra(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; import imagefleet.testing"
    last = _run(code).splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert missing in last
    assert last.endswith('pip install "imagefleet-….whl[testing]" (README.md)')

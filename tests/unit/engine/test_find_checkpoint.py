"""A model is found by its name, and only the files that the engine reads are downloaded."""

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from imagefleet.producer.demo.local_http import LocalServer
from imagefleet.shared.errors import CheckpointError, CheckpointUnavailable
from imagefleet.worker.engine.checkpoint.checkpoint_files import CheckpointFiles
from imagefleet.worker.engine.families.registry import read_configs
from imagefleet.worker.engine.families.stable_diffusion.configs import Configs
from imagefleet.worker.engine.loading.find_checkpoint import ModelIdentity, find_checkpoint
from imagefleet.worker.engine.options.model_options import ModelOptions
from tests.support import model_hub
from tests.unit.engine.flow_family import STABLE_DIFFUSION_3

MODEL = "someone/something"
PINNED = ModelIdentity(name=MODEL, source=f"{MODEL}@{model_hub.COMMIT}")
UNET = "unet/diffusion_pytorch_model"


def test_the_error_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder; give `shapes`"):
        find_checkpoint(str(tmp_path / "nowhere"))


def test_the_error_names_a_folder_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model_index\.json"):
        find_checkpoint(str(tmp_path))


def test_a_model_unknown_to_the_hub_gives_a_one_line_error(
    checkpoint: Path, tmp_path: Path
) -> None:
    with (
        model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache"),
        pytest.raises(CheckpointError) as error,
    ):
        find_checkpoint("someone/else")
    message = "model 'someone/else' is not a folder and could not be downloaded from the Hub"
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not error.value.retryable


def test_the_error_for_an_unreachable_hub_says_what_to_check(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache"):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        with pytest.raises(CheckpointUnavailable, match="the name, the network and HF_TOKEN"):
            find_checkpoint(MODEL)


def _answering(status: HTTPStatus) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(status)

        def log_message(self, *_: object) -> None:
            return None

    return Handler


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (HTTPStatus.SERVICE_UNAVAILABLE, True),
        (HTTPStatus.TOO_MANY_REQUESTS, True),
        (HTTPStatus.UNAUTHORIZED, False),
        (HTTPStatus.FORBIDDEN, False),
    ],
)
def test_only_an_overloaded_hub_may_answer_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: HTTPStatus, retryable: bool
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with LocalServer(_answering(status)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.port}")
        with pytest.raises(CheckpointError) as error:
            find_checkpoint(MODEL)
    assert error.value.retryable is retryable


def test_only_the_files_that_are_read_are_downloaded(checkpoint: Path, tmp_path: Path) -> None:
    for other in (".bin", ".fp16.safetensors", ".non_ema.safetensors"):
        (checkpoint / f"{UNET}{other}").write_bytes(b"other")
    (checkpoint / "v1.ckpt").write_bytes(b"other")
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache") as downloaded:
        folder = find_checkpoint(MODEL)
        assert f"{UNET}.safetensors" in downloaded
        assert {(checkpoint / name).read_bytes() for name in downloaded}.isdisjoint({b"other"})
        assert len(downloaded) == len(set(downloaded))
    Configs.read(CheckpointFiles(folder))
    assert ModelIdentity.of(MODEL, folder).name == MODEL


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}@main", f"{MODEL}@{model_hub.TAG}"])
def test_a_model_without_a_commit_is_found_with_one_warning_that_names_it(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache"):
        folder = find_checkpoint(name)
    [warning] = [each for each in caplog.messages if "names no commit" in each]
    assert f"IMAGEFLEET_MODEL={MODEL}@{model_hub.COMMIT}" in warning
    assert ModelIdentity.of(name, folder) == PINNED


def test_a_model_with_a_commit_is_found_without_a_warning(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"{MODEL}@{model_hub.COMMIT}"
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache"):
        folder = find_checkpoint(name)
    assert folder.name == model_hub.COMMIT
    assert ModelIdentity.of(name, folder) == PINNED
    assert not [each for each in caplog.messages if "names no commit" in each]


def test_the_error_names_an_unknown_revision(checkpoint: Path, tmp_path: Path) -> None:
    with (
        model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache"),
        pytest.raises(CheckpointError, match=f"model '{MODEL}@v9' is not a folder and could not"),
    ):
        find_checkpoint(f"{MODEL}@v9")


def test_half_precision_is_downloaded_if_there_is_nothing_else(
    checkpoint: Path, tmp_path: Path
) -> None:
    weights = checkpoint / f"{UNET}.safetensors"
    weights.rename(checkpoint / f"{UNET}.fp16.safetensors")
    (checkpoint / "vae" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(b"other")
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache") as downloaded:
        find_checkpoint(MODEL)
    assert f"{UNET}.fp16.safetensors" in downloaded
    # As with diffusers' variant="fp16", all networks that have half precision use it.
    assert "vae/diffusion_pytorch_model.fp16.safetensors" in downloaded


def test_a_downloaded_model_needs_no_hub(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache") as downloaded:
        folder = find_checkpoint(MODEL)
        downloaded.clear()
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        assert find_checkpoint(MODEL) == folder
        assert not downloaded


def test_configs_are_downloaded_without_weights(checkpoint: Path, tmp_path: Path) -> None:
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache") as downloaded:
        folder = find_checkpoint(MODEL, with_weights=False)
    assert downloaded
    assert not [name for name in downloaded if name.endswith(".safetensors")]
    Configs.read(CheckpointFiles(folder))


def test_a_third_text_encoder_is_downloaded_with_its_tokenizer_unless_it_is_left_out(
    tmp_path: Path,
) -> None:
    checkpoint = STABLE_DIFFUSION_3.write(tmp_path / "model")
    weights = "text_encoder_3/model.safetensors"
    with model_hub.serve_repository(MODEL, checkpoint, tmp_path / "cache") as downloaded:
        find_checkpoint(MODEL, left_out=ModelOptions(text_encoder_3=False).left_out)
        assert weights not in downloaded
        folder = find_checkpoint(MODEL)
    assert weights in downloaded
    files = CheckpointFiles(folder)
    assert read_configs(files).load_tokenizer(files).lengths == (256, 77, 77)

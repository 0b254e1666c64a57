"""The licence of a model is what the header of its card says, or the setting, and never a guess."""

import shutil
from pathlib import Path

import pytest

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.jobs.offers import Offer
from imagefleet.worker.engine.checkpoint.model_license import read_license
from imagefleet.worker.engine.fake.fake_engine import FakeEngine
from imagefleet.worker.engine.loading.find_checkpoint import find_checkpoint
from imagefleet.worker.engine.loading.read_model import ModelSetup
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.jobs.attempt import offer_of
from imagefleet.worker.settings.worker_settings import WorkerSettings


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlicense: apache-2.0\n---\n# A model", "apache-2.0"),
        ("---\r\nlanguage: en\r\nlicense: 'mit'  # as upstream\r\n---\r\n", "mit"),
        ("---\nlicense:\n- apache-2.0\n- cc-by-4.0\ntags: [a]\n---\n", "apache-2.0 cc-by-4.0"),
        ("---\nlicense: [mit, openrail]\n---\n", "mit openrail"),
        (
            "---\nlicense: other\nlicense_name: flux-1-dev-non-commercial-license\n"
            "license_link: LICENSE.md\n---\n",
            "other (flux-1-dev-non-commercial-license)",
        ),
        ("---\nlicense: other\n---\n", "other"),
        ("# A model\n\nlicense: mit\n", None),
        ("---\ntags:\n- license: mit\n---\nlicense: mit\n", None),
        ("---\nbase_model: org/model-apache-2.0\nlicense_link: LICENSE\n---\nApache-2.0", None),
        ("---\nlicense:\n---\n", None),
        ("---\nlicense: '<script>alert(1)</script>'\n---\n", None),
        (f"---\nlicense: {'a' * 101}\n---\n", None),
        ("", None),
    ],
)
def test_the_header_of_the_card_decides(tmp_path: Path, card: str, expected: str | None) -> None:
    (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert read_license(tmp_path) == expected


def test_a_folder_without_a_card_names_none(tmp_path: Path) -> None:
    assert read_license(tmp_path) is None
    (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\xfe\n---\n")
    assert read_license(tmp_path) is None


def test_the_setting_comes_before_the_card() -> None:
    folder = find_checkpoint("shapes")
    assert ModelSetup.read(folder, (), ModelOptions()).model_license == "apache-2.0"
    options = ModelOptions(model_license="my own")
    assert ModelSetup.read(folder, (), options).model_license == "my own"


def test_the_card_does_not_change_what_a_model_is(tmp_path: Path) -> None:
    """The digest is that of the files that an image depends on."""
    bundled, copy = find_checkpoint("shapes"), tmp_path / "shapes"
    shutil.copytree(bundled, copy)
    (copy / "README.md").write_text("---\nlicense: mit\n---\n")
    setups = [ModelSetup.read(each, (), ModelOptions()) for each in (bundled, copy)]
    assert [each.model_license for each in setups] == ["apache-2.0", "mit"]
    assert len({each.files.digest() for each in setups}) == 1


def test_an_offer_names_the_licence_only_if_it_is_known() -> None:
    engine = FakeEngine.parse(
        "fake",
        shapes=None,
        max_num_inference_steps=9,
        options=ModelOptions(model_license="apache-2.0"),
    )
    offer = offer_of(engine.info)
    read = Offer.model_validate_json(offer.model_dump_json())
    assert read.model_license == "apache-2.0"
    assert "license" not in offer_of(FakeEngine().info).model_dump_json()


def test_a_wrong_setting_is_refused() -> None:
    assert WorkerSettings.load(model_license="apache-2.0").model_license == "apache-2.0"
    with pytest.raises(ConfigurationError, match="must be at most 100 letters"):
        WorkerSettings.load(model_license="a|b")
    with pytest.raises(ConfigurationError, match="MODEL_LICENSE fits one model"):
        WorkerSettings.load(models=("a", "b"), model_license="mit")

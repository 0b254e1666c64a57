"""The structure report is right on a tiny tree whose figures can be counted by hand."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.docstrings import Verb, first_sentence, verb_of
from tools.structure import files_naming, measure

ORDER = """
[[tool.importlinter.contracts]]
type = "layers"
containers = ["imagefleet.shared"]
layers = ["top", "left | right", "bottom"]
"""


def report(root: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return measure(root)


@pytest.mark.parametrize("prefix", ["", "imagefleet."])
def test_an_arrow_is_found_however_the_import_is_spelt(tmp_path: Path, prefix: str) -> None:
    files = {
        "shared/__init__.py": "",
        "shared/a.py": f"from {prefix}shared import b\n",
        "shared/b.py": f"def late():\n    import {prefix}shared.package.c\n",
        "shared/package/c.py": f"if TYPE_CHECKING:\n    from {prefix}shared.d import D\n",
        "shared/d.py": "from . import e\n",
        "shared/e.py": f"import json\nimport {prefix}worker.a\n",
        "shared/data/only.json": "{}",
    }
    shared = report(tmp_path, files)["shared"]
    assert (shared["packages"], shared["arrows"], shared["circles of packages"]) == (5, 4, 0)


def test_a_tree_reached_through_a_link_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "src/imagefleet").mkdir(parents=True)
    (tmp_path / "src/imagefleet/shared").symlink_to(tmp_path / "shared")
    files = {"shared/a.py": "x = 1\n"}
    report(tmp_path, files)
    (tmp_path / "shared/again.py").symlink_to(tmp_path / "shared/a.py")
    assert measure(tmp_path)["total"]["files"] == 1


def test_a_circle_counts_its_rooms_and_its_modules(tmp_path: Path) -> None:
    files = {
        "producer/a.py": "from producer.package.x import X\n",
        "producer/package/x.py": "from producer.package.y import Y\n",
        "producer/package/y.py": "from producer.a import A\n",
        "producer/b.py": "from producer.a import A\n",
    }
    producer = report(tmp_path, files)["producer"]
    assert (producer["packages in circles"], producer["modules in circles"]) == (2, 3)
    assert (producer["arrows"], producer["arrows within circles"]) == (3, 2)
    assert producer["arrows back up"] is None


def test_arrows_against_the_declared_order_lead_back_up(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": ORDER,
        "shared/top.py": "from shared import bottom, right\n",
        "shared/left.py": "from shared import right\n",
        "shared/right.py": "",
        "shared/bottom.py": "from shared import left, loose\n",
        "shared/loose.py": "from shared import top\n",
    }
    found = report(tmp_path, files)
    assert found["shared"]["arrows back up"] == 1
    assert found["shared"]["arrows back up at"] == ["bottom -> left"]
    assert found["shared"]["packages without a layer"] == 1
    assert found["worker"]["arrows back up"] is None


def test_the_engine_is_a_folder_of_its_own_and_a_package_of_the_worker(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": ORDER.replace("imagefleet.shared", "imagefleet.worker.engine"),
        "worker/jobs.py": "from worker.engine.top.a import A\n",
        "worker/engine/top/a.py": "from worker.engine.bottom import B\n",
        "worker/engine/bottom.py": "from worker import jobs\n",
    }
    found = report(tmp_path, files)
    assert (found["worker"]["packages"], found["worker"]["arrows"]) == (2, 2)
    assert found["worker"]["circles of packages"] == 1
    assert found["worker"]["packages without a layer"] is None
    engine = found["worker/engine"]
    assert (engine["packages"], engine["arrows"], engine["files"]) == (2, 1, 2)
    assert (engine["circles of packages"], engine["packages without a layer"]) == (0, 0)
    assert engine["arrows of one import at"] == [
        "top -> bottom (worker.engine.top.a imports worker.engine.bottom)"
    ]


def test_the_longest_inheritance_leaves_errors_and_shared_bases_out(tmp_path: Path) -> None:
    files = {
        "shared/settings/settings.py": "class Settings(BaseSettings): ...\n",
        "shared/errors.py": (
            "class Broken(Exception): ...\nclass Torn(Broken): ...\nclass Holed(Torn): ...\n"
        ),
        "worker/a.py": (
            "from imagefleet.shared.settings.settings import Settings as Base\n"
            "class A(Base): ...\nclass B(A): ...\n"
        ),
        "worker/engine/b.py": "from worker import a\nclass C(a.B, Generic[T]): ...\n",
    }
    found = report(tmp_path, files)
    figure = "classes in the longest inheritance"
    assert [found[each][figure] for each in ("shared", "worker", "worker/engine")] == [0, 3, 3]
    assert found["worker"][f"{figure} at"] == "worker.a.A <- worker.a.B <- worker.engine.b.C"


def test_files_that_name_a_parameter_are_found(tmp_path: Path) -> None:
    files = {
        "worker/a.py": "max_seed = 1\n",
        "worker/b.py": "seeds = 1\n",
        "shared/c.py": "# seed\n",
    }
    report(tmp_path, files)
    assert files_naming("seed", tmp_path) == ["shared/c.py", "worker/a.py"]


def test_lengths_leave_decorators_out_and_name_the_longest(tmp_path: Path) -> None:
    files = {
        "worker/a.py": "@cache\ndef one(): ...\nclass A:\n    async def two(self):\n        pass\n",
        "worker/b.py": "x = 1\n" * 301,
    }
    worker = report(tmp_path, files)["worker"]
    assert (worker["functions"], worker["functions, median lines"]) == (2, 1.5)
    assert worker["functions, longest at"] == "worker/a.py:4 two"
    assert (worker["files, longest"], worker["files over 300 lines"]) == (301, 1)


def test_names_used_twice_are_listed_with_their_places(tmp_path: Path) -> None:
    files = {
        "producer/__init__.py": "class Plan: ...\nclass Plan: ...\n",
        "producer/rows.py": "class Row: ...\n",
        "worker/__init__.py": "",
        "worker/bulk/rows.py": "class Row: ...\n",
    }
    twice = report(tmp_path, files)["used twice"]
    assert twice["classes"] == {"Row": ["producer/rows.py:1", "worker/bulk/rows.py:1"]}
    assert twice["modules"] == {"rows": ["producer/rows.py", "worker/bulk/rows.py"]}


@pytest.mark.parametrize(
    ("sentence", "verb"),
    [
        ("Return the record.", Verb.MAIN),
        ("Never claim more than fits.", Verb.MAIN),
        ("Runs a shard to its end.", Verb.MAIN),
        ("Producers push prompts.", Verb.MAIN),
        ("The worker claims messages.", Verb.MAIN),
        ("When the lease ends, the jobs go back.", Verb.MAIN),
        ("`imagefleet demo`: run everything here.", Verb.MAIN),
        ("Rows that cannot be painted.", Verb.SIDE),
        ("What a run gives to its rows.", Verb.SIDE),
        ("Rows that were planned and could not be painted.", Verb.SIDE),
        ("The runs of one namespace.", Verb.NONE),
        ("Samples of a row.", Verb.NONE),
        ("Nothing to do.", Verb.NONE),
        ("The calls and claims of `begin`.", Verb.NONE),
    ],
)
def test_a_verb_is_found_in_the_main_or_a_side_clause(sentence: str, verb: Verb) -> None:
    assert verb_of(sentence) is verb


def test_line_breaks_and_abbreviations_do_not_end_the_first_sentence() -> None:
    assert first_sentence("DDIM (Song et al. 2021)\nis old. It runs.") == (
        "DDIM (Song et al. 2021) is old."
    )
    assert first_sentence("Raises:\n    KeyError: it is not there.") == ""


def test_docstrings_of_attributes_are_counted_separately(tmp_path: Path) -> None:
    text = (
        '"""The words."""\n\n\nclass A:\n    """Keep one."""\n\n    b: int\n    """Its size."""\n'
    )
    worker = report(tmp_path, {"worker/a.py": text})["worker"]
    assert (worker["docstrings"], worker["docstrings without a verb"]) == (2, 1)
    assert worker["verbless"] == ["worker/a.py:1 module: The words."]
    assert (worker["attribute docstrings"], worker["attribute docstrings without a verb"]) == (1, 1)


def printed(root: Path, *options: str) -> list[str]:
    command = [sys.executable, "-m", "tools.structure", "--root", str(root), *options]
    home = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_last_line_printed_is_the_report_as_json(tmp_path: Path) -> None:
    files = {"shared/a.py": "import shared.b\n", "shared/b.py": '"""Words."""\n'}
    files["shared/c.py"] = 'size = 1\n"""Bytes."""\n'
    expected = report(tmp_path, files)
    lines = printed(tmp_path, "--verbose")
    assert json.loads(lines[-1])["shared"]["arrows"] == expected["shared"]["arrows"] == 1
    assert "  shared/b.py:1 module: Words." in lines
    assert "  shared/c.py:2 size: Bytes." in lines
    assert any("no order declared" in line for line in lines)
    assert printed(tmp_path, "--json") == lines[-1:]

"""The rooms of the engine: what is general names no family of models."""

import re
from pathlib import Path

import pytest

from imagefleet.worker.engine.families.registry import FAMILIES, NETWORKS

ENGINE = Path(__file__).parents[3] / "worker" / "engine"
GENERAL = sorted(
    path.relative_to(ENGINE).as_posix()
    for path in ENGINE.rglob("*.py")
    if not path.is_relative_to(ENGINE / "families")
)
NAMES = re.compile(r"unet|is_xl|\bxl\b|sdxl|stable_diffusion(?!_)", re.IGNORECASE)
"""Words that only one family has. Docstrings and comments may give them as examples."""
ALLOWED = {
    "contract/image_use.py": "STABLE_DIFFUSION",  # the strengths of offers that name none
}


def _code(path: Path) -> str:
    """Return a module without its docstrings and comments."""
    text = re.sub(r'""".*?"""', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"(^|\s)#.*", "", text)


@pytest.mark.parametrize("name", GENERAL)
def test_general_code_names_no_family(name: str) -> None:
    found = set(NAMES.findall(_code(ENGINE / name))) - {ALLOWED.get(name, "")}
    assert not found, f"{name} names {found}; put that into a folder of families/"


def test_each_pipeline_belongs_to_one_family_and_each_family_names_its_networks() -> None:
    pipelines = [pipeline for family in FAMILIES for pipeline in family.pipelines]
    assert len(pipelines) == len(set(pipelines)) > 0
    assert {"text_encoder", "unet", "vae"} <= set(NETWORKS)

"""The public names of `imagefleet`: each exists, has one home, and loads nothing until its use."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

import pytest

import imagefleet
from imagefleet.shared.errors import ImagefleetError

PUBLIC = sorted({*imagefleet.__all__} - {"__version__"})


def _type_checking_imports(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return each name imported for type checkers, with its module and its name there."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _subclasses(root: type[ImagefleetError]) -> Iterator[type[ImagefleetError]]:
    for each in root.__subclasses__():
        yield each
        yield from _subclasses(each)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from imagefleet import {name}", namespace)
    assert namespace[name] is getattr(imagefleet, name)


def test_type_checkers_and_the_program_see_the_same_names() -> None:
    aliases = imagefleet._ALIASES
    homes = {name: (home, aliases.get(name, name)) for name, home in imagefleet._HOMES.items()}
    assert _type_checking_imports(imagefleet) == homes
    assert sorted(homes) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_the_table_names_the_module_that_defines_the_name(name: str) -> None:
    home = import_module(imagefleet._HOMES[name])
    value = getattr(home, imagefleet._ALIASES.get(name, name))
    assert value.__module__ == home.__name__


def test_every_error_is_public() -> None:
    errors: set[type[ImagefleetError]] = {ImagefleetError, *_subclasses(ImagefleetError)}
    ours = {each.__name__ for each in errors if each.__module__.startswith("imagefleet.shared")}
    assert ours <= set(imagefleet.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        _ = imagefleet.Missing


def test_importing_the_package_loads_none_of_its_dependencies() -> None:
    code = (
        "import sys; before = set(sys.modules); import imagefleet;"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "imagefleet" in loaded
    assert not loaded & {"pydantic", "redis", "jax", "celery", "click", "rich", "standardwebhooks"}


def test_the_version_is_that_of_the_installed_package() -> None:
    assert imagefleet.__version__ == metadata.version("imagefleet")

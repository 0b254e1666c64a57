"""Find the longest chain of classes that inherit from each other.

Input: the syntax trees of modules. Output: chains, from the parent to the child. Only classes of
these modules count. A chain that ends in an exception is no class split over several files, so it
is left out, as are the bases that pydantic's records share.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

SHARED_BASES: Final = ("shared.jobs.model.Model", "shared.settings.settings.Settings")
"""Records and settings inherit from these, which configure pydantic. They count as no link."""
_EXCEPTIONS: Final = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
)


def longest_chain(trees: Mapping[str, ast.Module], folder: str) -> list[str]:
    """Return the longest chain that ends in a class below `folder`, parent first.

    Args:
        trees: syntax trees by dotted module name.
        folder: a dotted name, as `worker.engine`.
    """
    bases_of = dict(pair for module, tree in trees.items() for pair in _classes(module, tree))

    @cache
    def chain(name: str) -> tuple[str, ...]:
        above = [chain(base) for base in bases_of[name] if base in bases_of]
        own = () if name in SHARED_BASES else (name,)
        longest: tuple[str, ...] = max(above, key=len, default=())
        return (*longest, *own)

    @cache
    def is_error(name: str) -> bool:
        return any(map(is_error, bases_of[name])) if name in bases_of else name in _EXCEPTIONS

    own = [name for name in bases_of if name.startswith(f"{folder}.") and not is_error(name)]
    longest: tuple[str, ...] = max(map(chain, own), key=len, default=())
    return list(longest)


def _classes(module: str, tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Yield each class at the first level of a module, and its bases, all with dotted names."""
    known = dict(_imported(tree))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
            yield f"{module}.{node.name}", [_resolve(base, known) for base in bases]
            known[node.name] = f"{module}.{node.name}"


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that a module imports, and what it stands for, without `imagefleet.`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            home = node.module.removeprefix("imagefleet.")
            yield from ((each.asname or each.name, f"{home}.{each.name}") for each in node.names)


def _resolve(base: str, known: Mapping[str, str]) -> str:
    first, dot, rest = base.partition(".")
    return known.get(first, first) + dot + rest

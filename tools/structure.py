"""Report the structure of the code: `python -m tools.structure`; `--help` lists the options.

The report is made from the source text alone; nothing of the project is imported. It covers the
folders `producer`, `shared`, `worker` and, as a folder of its own, `worker/engine`, and reads each
file there once: it follows no symlinks. It prints a table, the places behind the numbers, and at
last one line of JSON. tests/unit/test_structure_limits.py sets limits for the numbers.

A package is here a direct child of a folder: a sub-package with Python files in it, or a single
module beside them other than `__init__`. An arrow leads from one package to another whose modules
it imports, anywhere in a file. A circle is a set of packages, or of modules, that all import each
other on some path. An arrow leads back up if it goes from a lower layer to a higher one in
pyproject.toml's contracts, even where a contract ignores that import.
"""

import argparse
import ast
import json
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.docstrings import docstring_figures
from tools.inheritance import longest_chain

_ROOTS = ("producer", "shared", "worker")
FOLDERS = (*_ROOTS, "worker/engine", "producer/gateway")
LONG_FILES = (300, 400)

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Source:
    """One Python file: `name` is its dotted module name, `path` is relative to the root."""

    name: str
    path: str
    is_package: bool
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def lies_in(self, folder: str) -> bool:
        """Return whether the file stands in a folder or below it."""
        return self.path.startswith(f"{folder}/")


def read_sources(root: Path) -> list[Source]:
    """Read every Python file below the three folders, each once."""
    paths = [path for folder in _ROOTS for path in sorted((root / folder).rglob("*.py"))]
    sources = []
    for path in (path for path in paths if not path.is_symlink()):
        parts = path.relative_to(root).with_suffix("").parts
        package = parts[-1] == "__init__"
        text, short = path.read_text(encoding="utf-8"), str(path.relative_to(root))
        name = ".".join(parts[:-1] if package else parts)
        sources.append(Source(name, short, package, text, ast.parse(text, short)))
    return sources


def imported(source: Source) -> Iterator[str]:
    """Yield the dotted names that a file imports, without `imagefleet.` in front."""
    for node in ast.walk(source.tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            home = source.name.split(".")
            home = home[: len(home) - node.level + source.is_package] if node.level else []
            base = ".".join([*home, *filter(None, [node.module])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name.removeprefix("imagefleet.") for name in names)


def module_graph(sources: list[Source]) -> Graph:
    """Map each module to those it imports. A name counts as the longest module it begins with."""
    graph: Graph = {source.name: set() for source in sources}
    for source in sources:
        for name in imported(source):
            while name and name not in graph:
                name = name.rpartition(".")[0]
            if name and name != source.name:
                graph[source.name].add(name)
    return graph


def package_graph(modules: Graph, folder: str) -> Graph:
    """Fold the modules of a folder, a dotted name, into the packages at its first level."""
    packages: Graph = defaultdict(set)
    for name, targets in modules.items():
        if package := _package(name, folder):
            packages[package] |= {_package(target, folder) for target in targets} - {package, ""}
    return dict(packages)


def _package(name: str, folder: str) -> str:
    """Return the package of a folder in which a module lies; '' if it lies elsewhere."""
    inside = name.removeprefix(f"{folder}.")
    return "" if inside == name else inside.partition(".")[0]


def circles(graph: Graph) -> list[list[str]]:
    """Find the strongly connected components with more than one member."""
    reach: Graph = {}
    for start in graph:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        reach[start] = seen
    groups = {frozenset(m for m in reach[n] if n in reach.get(m, ())) for n in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def declared_orders(root: Path, folder: str) -> list[dict[str, int]]:
    """Read the layers contracts about a folder's packages: the layer of each, 0 at the top."""
    file = root / "pyproject.toml"
    tools = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}) if file.exists() else {}
    orders = []
    for contract in tools.get("importlinter", {}).get("contracts", []):
        order = {}
        for container in contract.get("containers", [""]):
            for depth, layer in enumerate(contract.get("layers", [])):
                for name in re.split(r"[|:]", layer):
                    full = f"{container}.{name.strip(' ()')}".strip(".").removeprefix("imagefleet.")
                    if full.rpartition(".")[0] == folder:
                        order[full.rpartition(".")[2]] = depth
        orders += [order] if order else []
    return orders


def arrows_of(root: Path, folder: str, modules: Graph) -> dict[str, Any]:
    """Measure the packages, arrows and circles of one folder, which is a dotted name."""
    packages, orders = package_graph(modules, folder), declared_orders(root, folder)
    own = {n: ts for n, ts in modules.items() if f"{n}.".startswith(f"{folder}.")}
    arrows = [(a, b) for a in sorted(packages) for b in sorted(packages[a])]
    up = [(a, b) for a, b in arrows if any(o.get(a, -1) > o.get(b, 1 << 30) for o in orders)]
    imports: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, target in ((n, t) for n, targets in own.items() for t in sorted(targets)):
        imports[_package(name, folder), _package(target, folder)].append(f"{name} imports {target}")
    loose = set(packages).difference(*orders)
    of_packages = circles(packages)
    of_modules = circles(own)
    return {
        "packages": len(packages),
        "arrows": len(arrows),
        "arrows back up": len(up) if orders else None,
        "packages without a layer": len(loose) if orders else None,
        "arrows within circles": sum(a in c and b in c for a, b in arrows for c in of_packages),
        "circles of packages": len(of_packages),
        "packages in circles": sum(map(len, of_packages)),
        "circles of modules": len(of_modules),
        "modules in circles": sum(map(len, of_modules)),
        "arrows of one import at": [
            f"{a} -> {b} ({imports[a, b][0]})" for a, b in arrows if len(imports[a, b]) == 1
        ],
        "arrows back up at": [f"{a} -> {b}" for a, b in up],
        "packages without a layer at": sorted(loose),
        "circles of packages at": [", ".join(circle) for circle in of_packages],
        "circles of modules at": [", ".join(circle) for circle in of_modules],
    }


def spread(kind: str, lengths: list[tuple[int, str]]) -> dict[str, Any]:
    """Return number, median, 90th percentile (nearest rank) and the longest of some lengths."""
    ordered = sorted(lengths) or [(0, "")]
    return {
        kind: len(lengths),
        f"{kind}, median lines": float(statistics.median(length for length, _ in ordered)),
        f"{kind}, 90th percentile": ordered[-(-9 * len(ordered) // 10) - 1][0],
        f"{kind}, longest": ordered[-1][0],
        f"{kind}, longest at": ordered[-1][1],
    }


def length_figures(sources: list[Source]) -> dict[str, Any]:
    """Measure functions, from `def` to their end, and files; empty files count too."""
    functions = [
        (node.end_lineno - node.lineno + 1, f"{s.path}:{node.lineno} {node.name}")
        for s in sources
        for node in ast.walk(s.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    ]
    files = [(s.lines, s.path) for s in sources]
    figures = spread("functions", functions) | spread("files", files)
    for most in LONG_FILES:
        over = [path for lines, path in files if lines > most]
        figures |= {f"files over {most} lines": len(over), f"files over {most} lines at": over}
    return figures


def files_naming(parameter: str, root: Path) -> list[str]:
    """Return the files that name a job parameter, also as a part of a name: `max_clip_skip`."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(parameter)}(?![A-Za-z0-9])")
    return [source.path for source in read_sources(root) if word.search(source.text)]


def names_used_twice(sources: list[Source]) -> dict[str, dict[str, list[str]]]:
    """Find the class names, and the names of module files, that stand in more than one place."""
    classes: dict[str, dict[str, str]] = defaultdict(dict)
    modules: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        stem = Path(source.path).stem
        if stem not in ("__init__", "__main__"):
            modules[stem].append(source.path)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].setdefault(source.name, f"{source.path}:{node.lineno}")
    return {
        "classes": {n: list(p.values()) for n, p in sorted(classes.items()) if len(p) > 1},
        "modules": {n: places for n, places in sorted(modules.items()) if len(places) > 1},
    }


def measure(root: Path) -> dict[str, Any]:
    """Measure everything, for each folder and in total."""
    sources = read_sources(root)
    modules = module_graph(sources)
    report: dict[str, Any] = {}
    trees = {source.name: source.tree for source in sources}
    for folder in FOLDERS:
        own, dotted = [each for each in sources if each.lies_in(folder)], folder.replace("/", ".")
        chain = longest_chain(trees, dotted)
        report[folder] = arrows_of(root, dotted, modules)
        report[folder] |= length_figures(own) | docstring_figures([(s.path, s.tree) for s in own])
        report[folder] |= {
            "classes in the longest inheritance": len(chain),
            "classes in the longest inheritance at": " <- ".join(chain),
        }
    report["total"] = length_figures(sources)
    report["total"] |= docstring_figures([(s.path, s.tree) for s in sources])
    return report | {"used twice": names_used_twice(sources)}


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table, and below it the places behind its numbers."""
    columns = [*FOLDERS, "total"]
    shown = {k: v for k, v in report[FOLDERS[0]].items() if not k.endswith(" at")}
    labels = [label for label, value in shown.items() if not isinstance(value, list)]
    yield f"{'':40}" + "".join(f"{column:>20}" for column in columns)
    for label in labels:
        cells = (report[column].get(label, "") for column in columns)
        texts = ("no order declared" if cell is None else str(cell) for cell in cells)
        yield f"{label:40}" + "".join(f"{text:>20}" for text in texts)
    for folder in FOLDERS:
        for kind in ("functions", "files"):
            yield f"{folder}, longest of {kind}: {report[folder][f'{kind}, longest at']}"
        chain = report[folder]["classes in the longest inheritance at"]
        yield f"{folder}, longest inheritance: {chain or 'none'}"
        for kind in ("arrows back up", "circles of packages", "circles of modules"):
            yield from (f"{folder}, {kind}: {place}" for place in report[folder][f"{kind} at"])
    for kind, names in report["used twice"].items():
        yield f"{kind} whose name is used twice: {len(names)}"
        yield from (f"  {name}: {', '.join(places)}" for name, places in names.items())


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description="Report the structure of the code.")
    parser.add_argument("--json", action="store_true", help="print the line of JSON only")
    parser.add_argument("--verbose", action="store_true", help="list docstrings without a verb")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--parameter", metavar="NAME", help="list the files that name a parameter")
    options = parser.parse_args()
    report = measure(options.root)
    if options.parameter:
        report["parameter"] = {options.parameter: files_naming(options.parameter, options.root)}
    if not options.json:
        print(*table(report), sep="\n")
        for name, files in report.get("parameter", {}).items():
            print(f"files that name {name}: {len(files)}", *files, sep="\n  ")
        if options.verbose:
            print("docstrings without a verb:", *report["total"]["verbless"], sep="\n  ")
            bare = report["total"]["verbless attributes"]
            print("attribute docstrings without a verb:", *bare, sep="\n  ")
    for figures in report.values():
        figures.pop("verbless", None)
        figures.pop("verbless attributes", None)
    print(json.dumps(report))


if __name__ == "__main__":
    main()

"""Which modules kubectl-topowise can ever import, found by reading them.

Imports within functions count as well; they are how the plug-in starts quickly. What only type checkers import does
not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
_ROOTS: Final = (REPOSITORY / "proto", REPOSITORY / "plugin")
_OURS: Final = ("topowise", "topowise_scheduler")
_PLUGIN: Final = "topowise_scheduler.kubectl"


def needed() -> tuple[dict[str, Path], set[str]]:
    """Our files by their path in the file that is made, and the names of other people's packages."""
    commands = _ROOTS[1] / _PLUGIN.replace(".", "/")
    waiting = [f"{_PLUGIN}.{path.stem}" for path in commands.glob("*.py")]
    waiting += [f"{_PLUGIN}.{path.name}" for path in commands.iterdir() if (path / "__init__.py").exists()]
    files: dict[str, Path] = {}
    packages: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        file = _file(name)
        if file is None:
            packages.add(name.partition(".")[0])
            continue
        root, path = file
        files[str(path.relative_to(root))] = path
        waiting += [name.rpartition(".")[0]] if "." in name else []
        waiting += _imported(ast.parse(path.read_text()))
    return files, packages - {*_OURS, *sys.stdlib_module_names}


def _file(name: str) -> tuple[Path, Path] | None:
    for root in _ROOTS:
        path = root.joinpath(*name.split("."))
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.exists():
                return root, file
    return None


def _imported(tree: ast.AST) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # A name is a module, or an attribute of the module before it.
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        waiting += ast.iter_child_nodes(node)

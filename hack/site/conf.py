"""The pages below docs/ as a site.

They are written to be read on a forge too, so nothing in them is for Sphinx. What it needs besides is added while a
page is read: the tree of pages, from the folders; links that leave docs/, which become links to the forge; and the
anchors set by hand, which Sphinx would not know as targets.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
FORGE = "https://github.com/topowise/topowise"

project = "topowise"
author = "the topowise authors"
copyright = author
version = release = re.findall(r'__version__ = "(.+)"', (REPOSITORY / "proto/topowise/__init__.py").read_text())[0]
extensions = ["myst_parser"]
root_doc = "README"
html_theme = "furo"
html_title = f"topowise {version}"
html_copy_source = False
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]
# No lexer is meant to judge an output that was cut with dots.
suppress_warnings = ["misc.highlighting_failure"]

_TREE = """

```{{toctree}}
:hidden:
:caption: {caption}
:glob:

{pages}
```
"""
_TREES = {
    "Start": ["quick-start", "concepts", "architecture", "comparison"],
    "Do": ["how-to/*", "how-to/on/*"],
    "Look up": ["reference/*", "*"],
    "Work on it": ["development/*", "adr/README", "adr/0*"],
}


def _tree() -> str:
    return "".join(_TREE.format(caption=caption, pages="\n".join(pages)) for caption, pages in _TREES.items())


def _outward(page: Path, text: str) -> str:
    """Links to files that are no pages of the site lead to the forge."""

    def forge(match: re.Match[str]) -> str:
        path, hash_, anchor = match[1].partition("#")
        target = (page.parent / path).resolve()
        if not path or re.match(r"\w+:", path) or (target.is_relative_to(DOCS) and target.suffix in (".md", ".svg")):
            return match[0]
        kind = "tree" if target.is_dir() else "blob"
        return f"]({FORGE}/{kind}/main/{target.relative_to(REPOSITORY)}{hash_}{anchor})"

    return re.sub(r"\]\(([^)\s]+)\)", forge, text)


def _read(app: Any, name: str, source: list[str]) -> None:
    # An anchor in a line of its own, or before a word: a target of Sphinx has the same name.
    text = re.sub(r'^<a id="([^"]+)"></a>$', r"{#\1}", source[0], flags=re.MULTILINE)
    source[0] = _outward(DOCS / f"{name}.md", text) + (_tree() if name == root_doc else "")


def _index(app: Any, failed: Exception | None) -> None:
    """Where a server looks first."""
    if not failed:
        shutil.copyfile(Path(app.outdir) / "README.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("build-finished", _index)

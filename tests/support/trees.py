"""Machines as recorded in tests/machines: a file for each tree of /sys and /proc.

`tree.json` maps a path to a file's content, to {"link": target} or to {"directory": true} (reading that fails with
EISDIR, as some attributes fail with EINVAL).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

FOLDERS: Final = Path(__file__).parents[1] / "machines"


def plant(folder: str, root: Path) -> None:
    """Makes the files of tests/machines/`folder` below `root`."""
    for name, content in json.loads((FOLDERS / folder / "tree.json").read_text(encoding="ascii")).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="ascii")
        elif "link" in content:
            path.symlink_to(content["link"])
        else:
            path.mkdir()

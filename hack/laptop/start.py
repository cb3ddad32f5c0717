"""The start of the file: unpacks the file once below the user's cache, and runs from there.

Python loads the two extension modules from files only, and unpacked modules keep their bytecode, without which a start
takes a second. A hash of the contents names the directory, so that versions do not share it. The directory is renamed
into its place when complete. Only the standard library can be imported here.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import time
import zipfile
from pathlib import Path

DIGEST = "@DIGEST@"
OLDEST = (3, 11)
FORGOTTEN_S = 30 * 24 * 3600


def main() -> int:
    """Runs the plug-in; its exit status."""
    if sys.version_info < OLDEST:
        return _error(f"needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    with zipfile.ZipFile(Path(__file__).resolve().parent) as archive:
        tags = {name.partition("/")[0] for name in archive.namelist()} - {"all", "__main__.py"}
        if tag not in tags:
            return _error(f"is made for {', '.join(sorted(tags))}, and python3 is {tag}; start it with one of these")
        folder, is_kept = _folder(tag)
        if not (folder / "topowise").is_dir():
            _unpack(archive, tag, folder)
    sys.path.insert(0, str(folder))
    try:
        from topowise_scheduler.kubectl.__main__ import main as run

        return run()
    finally:
        if not is_kept:
            shutil.rmtree(folder.parent, ignore_errors=True)


def _folder(tag: str) -> tuple[Path, bool]:
    """Returns the directory to unpack into, and whether to keep it: a private cache, or a temporary directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME", "/nonexistent") + "/.cache"
    folder = Path(cache) / "kubectl-topowise"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
        if is_own and os.access(folder, os.W_OK):
            return folder / f"{DIGEST}-{tag}", True
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="kubectl-topowise-")) / tag, False


def _unpack(archive: zipfile.ZipFile, tag: str, folder: Path) -> None:
    for sibling in folder.parent.iterdir():
        # A version that is still in use after all is unpacked again.
        if sibling.stat().st_mtime < time.time() - FORGOTTEN_S:
            shutil.rmtree(sibling, ignore_errors=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        for name in archive.namelist():
            part, _, path = name.partition("/")
            if part in ("all", tag):
                target = aside / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
        aside.rename(folder)
    except OSError:
        # Another process has unpacked the archive meanwhile.
        if not (folder / "topowise").is_dir():
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _error(text: str) -> int:
    sys.stderr.write(f"error: kubectl-topowise {text}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())

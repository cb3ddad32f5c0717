"""Assembles /opt/topowise, the layer above the image's base, in a directory on this machine.

pip installs the locked files by hash for the image's platform, and runs nothing of the image. So the build needs no
build stage, no network and no build tools, and makes an arm64 image on amd64 without an emulator. In return, the
assembling Python must have the image's minor version, which decides pip's choice of wheels and the bytecode.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from images import unused

REPOSITORY: Final = Path(__file__).resolve().parents[2]
# Architectures in the names of container images, and of wheels.
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
# Of Debian 12, so that the own base and python:3.11-slim-bookworm are of the same release.
PYTHON: Final = "3.11"
_GLIBC: Final = ("manylinux_2_36", "manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")

_COMMAND: Final = """\
#!/usr/bin/env python3
import sys

sys.path.insert(1, "/opt/topowise/lib")
from {module} import {function}

sys.exit({function}())
"""


class ImageError(Exception):
    """What is missing, and what to do about it."""


def assemble(architecture: str, target: Path) -> None:
    """Makes `target` anew with `lib` and `bin`."""
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running != PYTHON:
        raise ImageError(
            f"the image has Python {PYTHON} and .venv has {running}; make it anew with PYTHON=python{PYTHON}"
        )
    shutil.rmtree(target, ignore_errors=True)
    site, wheels = target / "lib", target / "wheels"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(REPOSITORY))
    _install(architecture, site, "--require-hashes", "--requirement", str(lock(target)))
    _install(architecture, site, *map(str, wheels.glob("*.whl")))
    shutil.rmtree(wheels)
    (target / "lock").unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)
    unused.remove(site)
    _commands(target / "bin")
    # A pod's root is read-only, so that bytecode that is not here is made again by each start: 0.4 s of CPU. Checked by
    # hash and never against the source, which keeps the image the same however often it is built.
    compileall.compile_dir(
        site,
        quiet=2,
        stripdir=str(target),
        prependdir="/opt/topowise",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def size(target: Path) -> int:
    """Bytes of all files."""
    return sum(path.lstat().st_size for path in target.rglob("*") if path.is_file())


def lock(target: Path) -> Path:
    """Returns the lock without the packages that the image does not need, hashes included."""
    target.mkdir(parents=True, exist_ok=True)
    lines = [
        entry
        for entry in re.split(r"\n(?=\S)", (REPOSITORY / "hack/requirements.txt").read_text())
        if entry.partition("==")[0] not in unused.DISTRIBUTIONS
    ]
    path = target / "lock"
    path.write_text("\n".join(lines))
    return path


def _install(architecture: str, site: Path, *requirements: str) -> None:
    platforms = [f"--platform={glibc}_{MACHINES[architecture]}" for glibc in _GLIBC]
    pip(
        "install",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
        "--implementation=cp",
        f"--python-version={PYTHON}",
        *platforms,
        f"--target={site}",
        *requirements,
    )


def pip(*arguments: str) -> None:
    """Runs pip of this Python. Raises ImageError."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ImageError(f"pip {arguments[0]} failed: {done.stderr.strip()}")


def _commands(folder: Path) -> None:
    """Our programs, for the Python of any base."""
    folder.mkdir()
    scripts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, _, function = entry.partition(":")
        (folder / name).write_text(_COMMAND.format(module=module, function=function))
        (folder / name).chmod(0o755)

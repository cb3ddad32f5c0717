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
# Megabytes on top of the base, so that no dependency adds fifty unnoticed.
MOST: Final = 130
# Of Debian 12, so that the own base and python:3.11-slim-bookworm are of the same release.
PYTHON: Final = "3.11"
_GLIBC: Final = ("manylinux_2_36", "manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux")

_COMMAND: Final = """\
#!/usr/bin/env python3
import os
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "lib"))
from {module} import {function}

sys.exit({function}())
"""
# Loads every library below the first argument, then every module of the packages that follow.
_LOAD: Final = """\
import ctypes, importlib, os, pathlib, pkgutil, sys
sys.path.insert(1, sys.argv[1])
for path in pathlib.Path(sys.argv[1]).rglob("*.so*"):
    ctypes.CDLL(path, os.RTLD_NOW)
for name in sys.argv[2:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
"""
_PACKAGES: Final = ("topowise", "topowise_exporter", "topowise_scheduler")


class ImageError(Exception):
    """What is missing, and what to do about it."""


def assemble(architecture: str, target: Path) -> float:
    """Makes `target` anew with `lib` and `bin`. Returns its size in megabytes, of which `MOST` are allowed."""
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
    if without_match := unused.remove(site):
        raise ImageError(
            f"no installed file matches {', '.join(without_match)} of hack/images/unused.py, so the image may have "
            "more than it needs; adapt the patterns to the locked packages, or remove them"
        )
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
    megabytes = size(target) / 1e6
    if megabytes > MOST:
        raise ImageError(
            f"the application for {architecture} has {megabytes:.0f} MB, expected at most {MOST}; so no image is made. "
            f"The largest files: {', '.join(_largest(target))}. See hack/images/unused.py"
        )
    return megabytes


def check_start(target: Path) -> None:
    """Loads all libraries and our modules of `target` and starts its programs, without the packages of .venv. Only for
    the architecture of this machine. Raises ImageError."""
    programs = sorted((target / "bin").iterdir())
    for arguments in (["-c", _LOAD, str(target / "lib"), *_PACKAGES], *([str(path), "--version"] for path in programs)):
        done = subprocess.run([sys.executable, "-I", "-S", *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            what = "a module" if arguments[0] == "-c" else Path(arguments[0]).name
            raise ImageError(f"{what} of {target} does not load: {done.stderr.strip()[-600:]}")


def size(target: Path) -> int:
    """Bytes of all files."""
    return sum(path.lstat().st_size for path in target.rglob("*") if path.is_file())


def _largest(target: Path) -> list[str]:
    files = sorted([(path.lstat().st_size, path) for path in target.rglob("*") if path.is_file()], reverse=True)
    return [f"{path.relative_to(target)} {size / 1e6:.1f} MB" for size, path in files[:5]]


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

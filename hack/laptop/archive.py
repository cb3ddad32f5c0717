"""Packs the file: topowise's modules, pure Python packages, and extension modules for each Python version.

numpy, 20 times as large as all other files, is packed on request only. `nodes`, `node` and `doctor` do not need numpy;
the other commands say what to install. The file has neither grpc nor a client of the API server: kubectl is the client,
with the credentials of its user's kubeconfig.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from images.application import pip
from laptop import modules

_LIBRARIES: Final = ("prometheus_client", "yaml")
"""Other people's packages that are, or can do, without extension modules."""
_NATIVE: Final = ("msgspec", "xxhash")
NUMPY: Final = "numpy"
PLATFORMS: Final = {
    "linux-amd64": tuple(f"{libc}_x86_64" for libc in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")),
    "linux-arm64": tuple(f"{libc}_aarch64" for libc in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")),
    "darwin-amd64": ("macosx_14_0_x86_64",),
    "darwin-arm64": ("macosx_14_0_arm64",),
}
_START: Final = Path(__file__).with_name("start.py")
_LOCK: Final = modules.REPOSITORY / "hack/requirements.txt"
_LEFT_OUT: Final = re.compile(
    r"(^|/)(__pycache__|tests|twisted|django|aiohttp|f2py|testing|doc)(/|$)|\.(pyi|pxd|h|a|c)$|_tests"
)
# Of any time that a ZIP can tell; the same content makes the same file.
_TIME: Final = (1980, 1, 1, 0, 0, 0)

Files = dict[str, Path]


class PackingError(Exception):
    """What is missing, and what to do about it."""


def running() -> str:
    """Returns the tag of this Python."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def pack(target: Path, native: dict[str, Files]) -> None:
    """Writes the file. `native` are the files of extension modules, by the tag of their Python."""
    modules_used, packages = modules.needed()
    unknown = packages - {*_LIBRARIES, *_NATIVE, NUMPY}
    if unknown:
        raise PackingError(
            f"the plug-in imports {', '.join(sorted(unknown))}, which nobody packs: hack/laptop/archive.py"
        )
    files = {f"all/{name}": path for name, path in modules_used.items()}
    for library in _LIBRARIES:
        files |= {f"all/{name}": path for name, path in _installed(library).items() if path.suffix == ".py"}
    for tag, native_files in native.items():
        files |= {f"{tag}/{name}": path for name, path in native_files.items()}
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(b"%s %d\n" % (name.encode(), len(content)) + content)
    start = _START.read_text().replace("@DIGEST@", digest.hexdigest()[:16]).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in {"__main__.py": start, **contents}.items():
                entry = zipfile.ZipInfo(name, _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    target.chmod(0o755)


def of_this_python(*, with_numpy: bool) -> dict[str, Files]:
    """Returns the files installed here: a file for this machine needs no network."""
    files: Files = {}
    for name in _wanted(with_numpy=with_numpy):
        files |= _installed(name)
    return {running(): files}


def fetched(platform: str, pythons: Sequence[str], folder: Path, *, with_numpy: bool) -> dict[str, Files]:
    """Returns the locked versions for another platform, checked by their hashes. Raises ImageError."""
    packages = _wanted(with_numpy=with_numpy)
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "lock"
    entries = re.split(r"\n(?=\S)", _LOCK.read_text())
    lock.write_text("\n".join(entry for entry in entries if entry.partition("==")[0] in packages))
    native = {}
    for python in pythons:
        site = folder / f"{platform}-{python}"
        pip(
            "install", "--no-deps", "--no-compile", "--only-binary=:all:", "--implementation=cp", "--upgrade",
            f"--python-version={python}", *(f"--platform={tag}" for tag in PLATFORMS[platform]), f"--target={site}",
            "--require-hashes", f"--requirement={lock}",
        )  # fmt: skip
        native[f"cp{python.replace('.', '')}"] = {
            name: path for package in packages for name, path in _below(site / package, site)
        }
    return native


def _wanted(*, with_numpy: bool) -> tuple[str, ...]:
    return (*_NATIVE, NUMPY, "numpy.libs") if with_numpy else _NATIVE


def _installed(package: str) -> Files:
    if package.endswith(".libs"):
        # Beside its package, where wheels for Linux keep what they were linked with.
        folder = next(iter(_installed(package.removesuffix(".libs")).values())).parents[0]
        while folder.name != package.removesuffix(".libs"):
            folder = folder.parent
        return dict(_below(folder.parent / package, folder.parent))
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise PackingError(f"{package} is not installed here; make venv")
    folder = Path(spec.origin).parent
    return dict(_below(folder, folder.parent))


def _below(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and not _LEFT_OUT.search(name):
            yield name, path

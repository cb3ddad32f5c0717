"""Packs the file: topowise's modules, pure Python packages, and extension modules for each Python version; and krew's
manifest with the archives that it names.

numpy, 20 times as large as all other files, is packed on request only. `nodes`, `node` and `doctor` do not need numpy;
the other commands say what to install. The file has neither grpc nor a client of the API server: kubectl is the client,
with the credentials of its user's kubeconfig.

The modules that kubectl-topowise can ever import are found by reading them. Imports within functions count as well;
they are how the plug-in starts quickly. What only type checkers import does not count.
Source of the manifest: sigs.k8s.io/krew docs (plugin manifest), internal/index/validation: an address ends with .tar.gz
or .zip, a version is semantic with a "v", and `files` has at least one.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import importlib.util
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from images.application import pip

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
_LOCK: Final = REPOSITORY / "hack/requirements.txt"
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
    modules_used, packages = needed()
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


NAME: Final = "kubectl-topowise"
FORGE: Final = "https://github.com/topowise/topowise"
_SHORT: Final = "Show NUMA nodes, and why pods fit on them"
_DESCRIPTION: Final = """\
Shows what the NUMA nodes of each machine can still give and which pod has which CPUs, memory and devices, and predicts
whether a node's kubelet will align a pod, where, and why not. Reads NodeResourceTopology objects of any exporter.
"""
_CAVEATS: Final = """\
Needs Python 3.11 or newer as python3. explain, fits, simulate and defrag need numpy: python3 -m pip install numpy
"""


def packed(program: Path, licence: Path, target: Path) -> str:
    """Writes the archive; the SHA-256 of it. The same files make the same archive."""
    uncompressed = io.BytesIO()
    with tarfile.open(fileobj=uncompressed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path, mode in ((NAME, program, 0o755), ("LICENSE", licence, 0o644)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = path.stat().st_size, mode
            with path.open("rb") as content:
                archive.addfile(entry, content)
    target.write_bytes(gzip.compress(uncompressed.getvalue(), mtime=0))
    return hashlib.sha256(target.read_bytes()).hexdigest()


def manifest(version: str, digests: Mapping[str, str], address: str) -> str:
    """Returns the manifest for archives below an address, by platform ("linux-amd64")."""
    platforms: list[dict[str, Any]] = []
    for platform, digest in sorted(digests.items()):
        system, _, architecture = platform.partition("-")
        platforms.append(
            {
                "selector": {"matchLabels": {"os": system, "arch": architecture}},
                "uri": f"{address}/{archive_name(platform)}",
                "sha256": digest,
                "files": [{"from": NAME, "to": "."}, {"from": "LICENSE", "to": "."}],
                "bin": NAME,
            }
        )
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": NAME.removeprefix("kubectl-")},
        "spec": {
            "version": f"v{version}",
            "homepage": FORGE,
            "shortDescription": _SHORT,
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(document, sort_keys=False)


def archive_name(platform: str) -> str:
    """Returns the name of a platform's archive."""
    return f"{NAME}-{platform}.tar.gz"

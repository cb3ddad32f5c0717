"""Removes what no daemon reads from the installed packages of the image.

Two thirds of the files are unused: the official client's models and synchronous half, tests, type stubs, headers,
sources of extension modules. Wheels also ship libraries with debug information, a fifth of all bytes. The image becomes
smaller, and scanners find fewer advisories. The parts of the official client that kubeconfigs with exec plug-ins, OIDC
or a proxy need stay (docs/adr/0002). Invariant: every removed file is named here, and tests run the daemons and an exec
plug-in on the remaining files.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Final

# Packages that only the models and the synchronous half of the official client import.
DISTRIBUTIONS: Final = frozenset({
    "annotated-types",
    "certifi",
    "charset-normalizer",
    "durationpy",
    "oauthlib",
    "pydantic",
    "pydantic-core",
    "python-dateutil",
    "requests",
    "requests-oauthlib",
    "typing-inspection",
    "tzdata",
    "urllib3",
    "websocket-client",
})  # fmt: skip

# Of the official client, everything else than these.
CLIENT: Final = frozenset({
    "py.typed",
    "aio/client/configuration.py",
    "aio/client/exceptions.py",
    "aio/client/rest.py",
    "aio/utils/_retry_base.py",
    "aio/utils/retry.py",
    *(
        f"aio/config/{name}.py"
        for name in (
            "__init__",
            "config_exception",
            "dateutil",
            "exec_provider",
            "google_auth",
            "incluster_config",
            "kube_config",
            "openid",
        )
    ),
})  # fmt: skip

# Replaces modules that import the whole client; topowise never makes an ApiClient.
_INSTEAD: Final = {
    "__init__.py": "",
    "aio/__init__.py": "",
    "aio/utils/__init__.py": "",
    "aio/client/__init__.py": "from .configuration import Configuration\n\nApiClient = None\n",
}

_PATTERNS: Final = (
    "**/tests",
    "**/*.pyi",
    "**/*.pyx",
    "**/*.pxd",
    "**/*.c",
    "**/*.h",
    "**/*.a",
    "numpy/f2py",
    "numpy/testing",
    "numpy/_core/_*_tests*.so",
    "numpy/_core/_simd*.so",
    "numpy/_pyinstaller",
    "numpy/doc",
    "grpc/experimental/gevent.py",
    # Extensions of CEL that claims/expressions.py does not import.
    "cel_expr_python/ext/ext_encoders*.so",
    "cel_expr_python/ext/ext_math*.so",
    "cel_expr_python/ext/ext_proto*.so",
)

# ELF64, little endian: the file's header, and a segment of the program header table (elf(5)).
_ELF: Final = b"\x7fELF\x02\x01"
_FILE_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")


def remove(site: Path) -> list[str]:
    """Leaves in `site` what the daemons need. Returns the patterns that no file matches."""
    without_match = []
    for pattern in _PATTERNS:
        paths = sorted(site.glob(pattern))
        if not paths:
            without_match.append(pattern)
        for path in paths:
            _delete(path)
    _trim_client(site / "kubernetes")
    for path in site.rglob("*.so*"):
        _strip(path)
    for folder in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return without_match


def _trim_client(client: Path) -> None:
    for path in sorted(client.rglob("*")):
        if path.is_file() and str(path.relative_to(client)) not in CLIENT:
            path.unlink()
    for name, text in _INSTEAD.items():
        (client / name).write_text(text)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def _strip(library: Path) -> None:
    """Truncates a library after its last segment: symbol tables and debug information follow, which the dynamic loader
    never reads. In place of binutils, whose `strip` knows the architecture of this machine only."""
    content = library.read_bytes()
    if not content.startswith(_ELF) or len(content) < _FILE_HEADER.size:
        return
    header = list(_FILE_HEADER.unpack_from(content))
    table_at, segment_size, segment_count = header[5], header[9], header[10]
    segments = [_SEGMENT.unpack_from(content, table_at + at * segment_size) for at in range(segment_count)]
    if not segments:
        return
    end = max(table_at + segment_size * segment_count, *(segment[2] + segment[5] for segment in segments))
    # Address, entries and names of the section header table, which stood at the end.
    header[6] = header[12] = header[13] = 0
    library.write_bytes(_FILE_HEADER.pack(*header) + content[_FILE_HEADER.size : end])

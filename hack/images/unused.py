"""Removes files of installed packages that no daemon reads from the image.

Two thirds of the files are unused: the official client's models and synchronous half, tests, type stubs, headers,
sources of extension modules. The image becomes smaller, and scanners find fewer advisories. The parts of the official
client that kubeconfigs with exec plug-ins, OIDC or a proxy need stay (docs/adr/0002). Invariant: every removed file is
named here, and tests run the daemons and an exec plug-in on the remaining files.
"""

from __future__ import annotations

import shutil
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
)


def remove(site: Path) -> None:
    """Leaves in `site` what the daemons need."""
    for pattern in _PATTERNS:
        for path in sorted(site.glob(pattern)):
            _delete(path)
    _trim_client(site / "kubernetes")
    for folder in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


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

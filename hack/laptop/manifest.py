"""krew's manifest, and the archives that it names.

Source: sigs.k8s.io/krew docs (plugin manifest), internal/index/validation: an address ends with .tar.gz or .zip, a
version is semantic with a "v", and `files` has at least one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

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

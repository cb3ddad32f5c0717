"""An image into a cluster without a registry: each kind of cluster has a command that imports an archive."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Final

from images.application import MACHINES, ImageError

# What each is done with, in the order in which they are looked for: kind and k3s bring a containerd of their own.
CLUSTERS: Final = {
    "kind": ["kind", "load", "image-archive", "{archive}", "--name", "{cluster}"],
    "k3s": ["k3s", "ctr", "images", "import", "{archive}"],
    # The namespace in which a kubelet looks for images. $CONTAINERD_ADDRESS names another socket.
    "containerd": ["ctr", "--namespace", "k8s.io", "images", "import", "{archive}"],
}


def architecture() -> str:
    """This machine's, as container engines to_text it."""
    machine = platform.machine()
    names = [name for name, their_name in MACHINES.items() if their_name == machine]
    if not names:
        raise ImageError(f"no image for {machine}, expected {' or '.join(MACHINES.values())}")
    return names[0]


def command(archive: Path, into: str, cluster: str) -> list[str]:
    """Returns the command that imports the archive. Raises ImageError if no importer is installed."""
    target = into or next((name for name, words in CLUSTERS.items() if shutil.which(words[0])), "")
    if not target:
        tools = ", ".join(words[0] for words in CLUSTERS.values())
        raise ImageError(f"none of {tools} is installed; copy {archive} to each node and import it there")
    return [word.format(archive=archive, cluster=cluster or "kind") for word in CLUSTERS[target]]


def load(archive: Path, into: str, cluster: str) -> None:
    if not archive.exists():
        raise ImageError(f"{archive} does not exist; run make images first")
    words = command(archive, into, cluster)
    print(f"images: {' '.join(words)}", flush=True)
    try:
        done = subprocess.run(words, check=False, env=os.environ)
    except FileNotFoundError:
        raise ImageError(f"{words[0]} is not installed") from None
    if done.returncode:
        raise ImageError(f"{words[0]} failed with {done.returncode}, see above")

"""The container engine of this machine, and the base an image is built on.

buildah first: Debian has it, it needs no daemon, and with chroot isolation and plain folders as storage (vfs) it runs
where nothing may be mounted. podman has the same commands. docker builds and saves in its own. The image is only copied
together, so none of them runs anything while building. Everything that buildah stores is below .venv, and goes with
`make clean`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.application import MACHINES, REPOSITORY, ImageError

# The default base, by digest.
BASE: Final = re.findall(r"^ARG BASE=(\S+@sha256:\S+)$", (REPOSITORY / "hack/images/Dockerfile").read_text(), re.M)[0]
_STORE: Final = REPOSITORY / ".venv/images"
# libstdc++6: gRPC is linked with it. libudev1: pyudev loads it, and without it hardware is only read at its interval.
_PACKAGES: Final = "python3,libstdc++6,libudev1,ca-certificates"
# The tag follows from the packages: other packages make another base.
_OWN_BASE: Final = f"localhost/topowise-base:bookworm-{zlib.crc32(_PACKAGES.encode()):08x}"
# Seconds for a request to a registry that may be unreachable.
_REGISTRY: Final = 60


@dataclass(frozen=True)
class Engine:
    """`name` is the program's."""

    name: str
    command: tuple[str, ...]

    def run(self, *arguments: str, timeout: float | None = None) -> str:
        """Runs the engine, and returns its output. Raises ImageError with the end of its messages."""
        environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                check=False,
                capture_output=True,
                text=True,
                env=environment,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise ImageError(f"{self.name} {arguments[0]} has not ended within {timeout:.0f} s") from None
        if done.returncode:
            raise ImageError(f"{self.name} {arguments[0]} failed: {' '.join(done.stderr.split())[-600:]}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        """Is it stored here?"""
        done = subprocess.run([*self.command, "inspect", "--type", "image", image], check=False, capture_output=True)
        return done.returncode == 0


def find() -> Engine:
    """Returns $ENGINE, or the first available of buildah, podman and docker. Raises ImageError."""
    requested = os.environ.get("ENGINE", "")
    for name in [requested] if requested else ["buildah", "podman", "docker"]:
        if shutil.which(name):
            return named(name)
    raise ImageError(
        f"no {requested or 'buildah, podman or docker'} here; on Debian: apt-get install buildah mmdebstrap"
    )


def named(name: str) -> Engine:
    """Returns the engine of this name, with its store."""
    stored = ("--storage-driver=vfs", f"--root={_STORE}/store", f"--runroot={_STORE}/run")
    return Engine(name, (name, *(stored if name == "buildah" else ())))


def base(engine: Engine, named: str, architecture: str) -> str:
    """Returns the base image: the named image, else the default image, else an image made here."""
    image = named or BASE
    try:
        engine.run("pull", f"--platform=linux/{architecture}", image, timeout=_REGISTRY)
        return image
    except ImageError as exc:
        if engine.has(image):
            return image
        if named:
            raise
        print(
            f"images: {BASE} cannot be pulled ({str(exc)[:160]}); making a base from Debian packages instead",
            flush=True,
        )
    own = f"{_OWN_BASE}-{architecture}"
    if not engine.has(own):
        _bootstrap(engine, own, architecture)
    return own


def _bootstrap(engine: Engine, name: str, architecture: str) -> None:
    """Makes a base of Debian 12 with Python and without apt or build tools. $MIRROR names the mirror."""
    if not shutil.which("mmdebstrap"):
        raise ImageError(
            "mmdebstrap is not installed, so no base can be made; apt-get install mmdebstrap, or name a base with BASE="
        )
    _STORE.mkdir(parents=True, exist_ok=True)
    archive = _STORE / f"base-{architecture}.tar"
    without = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "info", "locale")]
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        f"--architectures={architecture}",
        f"--include={_PACKAGES}",
        *without,
        # Licences stay with what they are about.
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "bookworm",
        str(archive),
        os.environ.get("MIRROR", "http://deb.debian.org/debian"),
    ]
    # The machine's own apt configuration is for the machine.
    environment = {key: value for key, value in os.environ.items() if key != "APT_CONFIG"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ImageError(f"mmdebstrap failed: {' '.join(done.stderr.split())[-600:]}")
    _import(engine, archive, name, architecture)
    archive.unlink()


def _import(engine: Engine, archive: Path, name: str, architecture: str) -> None:
    if engine.name != "buildah":
        engine.run("import", f"--platform=linux/{architecture}", str(archive), name)
        return
    container = engine.run("from", f"--arch={architecture}", "scratch")
    engine.run("add", container, str(archive), "/")
    engine.run("config", "--cmd", "python3", "--arch", architecture, "--os", "linux", container)
    engine.run("commit", "--rm", container, name)


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

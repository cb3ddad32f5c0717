"""The disk, kernel and initrd of all guests: a Debian by mmdebstrap with the files of hack/lab/rootfs.

Making the base takes some minutes, so it is cached in $XDG_CACHE_HOME/topowise-lab, in a directory named by a hash of
its inputs: packages, files and suite. With user namespaces, mmdebstrap needs no root; steps that need files owned by
root run in its hook.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lab import boot
from lab.errors import LabError

SUITE: Final = "bookworm"
PACKAGES: Final = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "iproute2",
    "kmod",
    "mount",
    "procps",
    "util-linux",
    "busybox-static",
    "linux-image-amd64",
)
# Units that wait for udev, for clock synchronisation or for a keyboard.
MASKED: Final = (
    *(
        f"systemd-{name}.service"
        for name in (
            "binfmt",
            "firstboot",
            "fsck-root",
            "hwdb-update",
            "journal-flush",
            "logind",
            "machine-id-commit",
            "modules-load",
            "networkd",
            "pcrphase",
            "pcrphase-sysinit",
            "random-seed",
            "remount-fs",
            "resolved",
            "sysusers",
            "timesyncd",
            "tmpfiles-setup-dev",
            "udev-trigger",
            "udevd",
            "update-utmp",
            "user-sessions",
        )
    ),
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-tmpfiles-clean.timer",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty@tty1.service",
    "kmod-static-nodes.service",
    "modprobe@.service",
    "networking.service",
    "dev-mqueue.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
)
_FILES: Final = Path(__file__).with_name("rootfs")
_SIZE: Final = "12G"
_SECONDS: Final = 1800
# As root of the name space; a bind mount leaves out the /proc, /sys and /dev that are mounted in there.
_HOOK: Final = """\
set -e
rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/boot/initrd.img-*
mkdir {here}/root
mount --bind "$1" {here}/root
{python} -m lab.boot {here}/root {here}
truncate -s {size} {here}/disk
mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 -L lab -d {here}/root {here}/disk
umount {here}/root
"""


class Base:
    """The folder of it, by what is in there."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.kernel, self.initrd, self.busybox, self.key = (
            folder / name for name in ("disk", "kernel", "initrd", "busybox", "key")
        )


def cache() -> Path:
    """Returns the cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topowise-lab"


def overlay(key: str) -> bytes:
    """Returns the files that make a Debian a guest, as a tar archive owned by root; `key` may log in."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for path in sorted(path for path in _FILES.rglob("*") if path.is_file()):
            mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
            _add(archive, str(path.relative_to(_FILES)), path.read_bytes(), mode)
        _add(archive, "root/.ssh/authorized_keys", key.encode(), 0o600)
        for unit, to in {"default.target": "lab.target", **dict.fromkeys(MASKED, "/dev/null")}.items():
            link = tarfile.TarInfo(f"etc/systemd/system/{unit}")
            link.type, link.linkname = tarfile.SYMTYPE, to
            archive.addfile(link)
    return whole.getvalue()


def _add(archive: tarfile.TarFile, path: str, data: bytes, mode: int) -> None:
    file = tarfile.TarInfo(path)
    file.size, file.mode = len(data), mode
    archive.addfile(file, io.BytesIO(data))


def command(folder: Path, mirror: str) -> list[str]:
    """mmdebstrap's; the archive of `overlay` is in the folder, and everything else will be."""
    hook = _HOOK.format(here=folder, python=sys.executable, size=_SIZE)
    without = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "info", "locale")]
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        f"--include={','.join(PACKAGES)}",
        *without,
        f"--customize-hook=tar-in {folder / 'overlay.tar'} /",
        f"--customize-hook={hook}",
        "--format=null",
        SUITE,
        "-",
        mirror,
    ]


def made(environment: Mapping[str, str] = os.environ) -> Base:
    """Returns the base, and makes it first if there is none. Raises LabError."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    key = _key(folder)
    tar = overlay(key.with_suffix(".pub").read_text())
    parts = (tar, Path(boot.__file__).read_bytes(), Path(boot.__file__).with_name("init").read_bytes(), _HOOK.encode())
    named = hashlib.sha256(b"\0".join((SUITE.encode(), " ".join(PACKAGES).encode(), *parts))).hexdigest()[:12]
    target = folder / f"base-{named}"
    if not target.exists():
        _make(target, tar, key, environment)
    return Base(target)


def _make(target: Path, tar: bytes, key: Path, environment: Mapping[str, str]) -> None:
    if not shutil.which("mmdebstrap"):
        raise LabError("mmdebstrap is not installed, so no guest can be made; apt-get install mmdebstrap")
    part = target.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    (part / "overlay.tar").write_bytes(tar)
    shutil.copy(key, part / "key")
    # The machine's own apt configuration is for the machine.
    clean = {name: value for name, value in environment.items() if name != "APT_CONFIG"}
    mirror = clean.get("MIRROR", "http://deb.debian.org/debian")
    log = part / "log"
    with log.open("wb") as output:
        done = subprocess.run(
            command(part, mirror), check=False, stdout=output, stderr=subprocess.STDOUT, env=clean, timeout=_SECONDS
        )
    if done.returncode:
        raise LabError(
            f"mmdebstrap failed with {done.returncode}, see {log}: {' '.join(log.read_text().split())[-400:]}"
        )
    (part / "root").rmdir()
    part.rename(target)


def _key(folder: Path) -> Path:
    path = folder / "key"
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)], check=True)
    return path

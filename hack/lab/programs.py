"""External programs that a lab calls, each with its Debian package; docs/development/lab-binaries.md has the same
table."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Final

from lab import qemu
from lab.errors import LabError

ALWAYS: Final = {"openssl": "openssl", "git": "git"}
EMULATED: Final = {
    qemu.PROGRAM: "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mkfs.ext4": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "buildah": "buildah",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    **ALWAYS,
}
NATIVE: Final = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "pgrep": "procps",
    "pkill": "procps",
    **ALWAYS,
}


def check(programs: Mapping[str, str]) -> None:
    """Raises LabError that names every missing program and the packages that have it."""
    if missing := [program for program in programs if not shutil.which(program)]:
        packages = dict.fromkeys(programs[program] for program in missing)
        raise LabError(
            f"{', '.join(missing)} not found on PATH, so the lab does not start; apt-get install {' '.join(packages)}"
        )

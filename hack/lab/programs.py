"""External programs that a lab calls, each with its Debian package; docs/development/lab-binaries.md has the same
table."""

from __future__ import annotations

import shutil
from typing import Final

from lab.errors import LabError

PACKAGES: Final = {
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setsid": "util-linux",
    "mount": "mount",
    "pgrep": "procps",
    "pkill": "procps",
    "openssl": "openssl",
    "git": "git",
}


def check() -> None:
    """Raises LabError that names every missing program and the packages that have it."""
    if missing := [program for program in PACKAGES if not shutil.which(program)]:
        packages = dict.fromkeys(PACKAGES[program] for program in missing)
        raise LabError(
            f"{', '.join(missing)} not found on PATH, so the lab does not start; apt-get install {' '.join(packages)}"
        )

"""Processes that may write nowhere, each in a mount namespace of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

# Applies to every mounted file system below the root, except for virtual file systems.
_READ_ONLY: Final = """
mount --make-rprivate /
for point in $(awk '$5 !~ "^/(proc|sys|dev)(/|$)" {print $5}' /proc/self/mountinfo | sort -ur); do
    mount -o remount,bind,ro "$point" 2>/dev/null || true
done
if touch "$0/probe" 2>/dev/null; then echo "still writable: $0" >&2; exit 99; fi
exec "$@"
"""
_FULL: Final = """
mount --make-rprivate /
for point in "$0" /tmp /var/tmp /dev/shm; do
    case "$0" in "$point"/*) continue;; esac
    mount -t tmpfs -o size=64k tmpfs "$point"
    dd if=/dev/zero of="$point/filling" bs=4k 2>/dev/null || true
    if echo more 2>/dev/null > "$point/probe" && test -s "$point/probe"; then echo "not full: $point" >&2; exit 99; fi
done
cd "$0"
export HOME="$0" TMPDIR="$0"
exec "$@"
"""


def read_only(directory: Path) -> tuple[str, ...]:
    """Returns a command that runs another with every file system read-only, `directory` too."""
    return _under(_READ_ONLY, directory)


def full(directory: Path) -> tuple[str, ...]:
    """Returns a command that runs another in `directory`, which has no room, like the places for temporary files."""
    return _under(_FULL, directory)


def _under(script: str, directory: Path) -> tuple[str, ...]:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to make a mount namespace (unshare -m): run as root")
    directory.mkdir(exist_ok=True)
    return (unshare, "-m", "sh", "-ec", script, str(directory))

"""Whether an exporter that was taken over can write into other pods' volumes, in a mount namespace of its own."""

from __future__ import annotations

import ctypes.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# As a container runtime mounts a hostPath: with all that is mounted below, of which only the top becomes read-only.
MOUNTS = """
set -e
mount -t tmpfs host "$1"
mkdir -p "$1/pods/other/volumes/disk" "$1/pods/other/volumes/memory" "$1/pod-resources" "$2"
echo '{}' > "$1/cpu_manager_state"
chmod 777 "$1/pods/other/volumes/disk"
mount -t tmpfs volume "$1/pods/other/volumes/memory"
echo precious > "$1/pods/other/volumes/memory/file"
mount --rbind "$1" "$2"
mount -o remount,ro,bind "$2"
shift 2
exec "$@"
"""
ATTACK = """
import json, os, subprocess, sys
from pathlib import Path
from topowise_exporter import landlock

root, is_confined = Path(sys.argv[1]), sys.argv[2] == "confined"
if is_confined and not landlock.apply():
    print(json.dumps({"skipped": "no Landlock"})); sys.exit()
volumes = root / "pods/other/volumes"
tries = {
    "read state file": lambda: (root / "cpu_manager_state").read_text(),
    "list pods": lambda: os.listdir(root / "pods"),
    "write state file": lambda: (root / "cpu_manager_state").write_text("x"),
    "write to disk volume": lambda: (volumes / "disk/new").write_text("x"),
    "write to mounted volume": lambda: (volumes / "memory/new").write_text("x"),
    "overwrite": lambda: (volumes / "memory/file").open("r+").write("x"),
    "truncate": lambda: os.truncate(volumes / "memory/file", 0),
    "rename": lambda: (volumes / "memory/file").rename(volumes / "memory/other"),
    "link": lambda: (volumes / "memory/link").symlink_to("/etc"),
    "make directory": lambda: (volumes / "memory/folder").mkdir(),
    "make socket": lambda: os.mkfifo(volumes / "memory/fifo"),
    "delete": lambda: next((volumes / "memory").iterdir()).unlink(),
    "execute": lambda: subprocess.run(["/bin/true"], check=True),
    "write elsewhere": lambda: Path("/tmp/topowise-was-here").write_text("x"),
}
said = {}
for name, one in tries.items():
    try:
        one(); said[name] = "done"
    except OSError as exc:
        said[name] = exc.strerror
Path("/tmp/topowise-was-here").unlink(missing_ok=True) if not is_confined else None
print(json.dumps(said))
"""
READING = ("read state file", "list pods")


def attacked(directory: Path, how: str) -> dict[str, Any]:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare on PATH")
    host, container = directory / "host", directory / "container"
    host.mkdir()
    attack = [sys.executable, "-c", ATTACK, str(container), how]
    inside = ["sh", "-c", MOUNTS, "mounts", str(host), str(container), *attack]
    done = subprocess.run([unshare, "-Urm", *inside], capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr and done.returncode:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    if "skipped" in said:
        pytest.skip(said["skipped"])
    return said


def test_a_read_only_mount_alone_leaves_volumes_below_it_open(tmp_path: Path) -> None:
    said = attacked(tmp_path, "as it is")
    assert said["write to disk volume"] == said["write state file"] == "Read-only file system"
    assert said["write to mounted volume"] == said["overwrite"] == "done"


def test_the_exporter_can_read_what_it_needs_and_write_nothing(tmp_path: Path) -> None:
    said = attacked(tmp_path, "confined")
    assert [said.pop(name) for name in READING] == ["done", "done"]
    assert set(said.values()) <= {"Permission denied", "Read-only file system"}, said


# Seen on a real node: without events, as pyudev starts a program to find the library.
EVENTS = """
from topowise_exporter.__main__ import confine
from topowise_exporter.triggers import Trigger, Uevents

confine()
with Uevents(Trigger())._monitor() as monitor:
    print("no events" if monitor is None else "events")
"""


@pytest.mark.skipif(ctypes.util.find_library("udev") is None, reason="no libudev here")
def test_who_may_start_no_program_still_has_kernel_events() -> None:
    done = subprocess.run([sys.executable, "-c", EVENTS], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "events", done.stderr

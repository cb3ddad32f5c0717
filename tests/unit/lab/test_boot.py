"""Kernel and initrd: modules in an order in which they load, an archive that the kernel reads."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from lab import base, boot

DEPENDENCIES = """\
kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko
kernel/fs/jbd2/jbd2.ko:
kernel/fs/mbcache.ko:
kernel/lib/crc16.ko:
kernel/drivers/virtio/virtio_pci.ko: kernel/drivers/virtio/virtio.ko
kernel/drivers/virtio/virtio.ko:
kernel/net/bridge/br_netfilter.ko: kernel/net/bridge/bridge.ko kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko
kernel/net/802/stp.ko: kernel/net/llc/llc.ko
kernel/net/llc/llc.ko:
"""


def test_a_module_comes_after_all_that_it_needs_and_once() -> None:
    ordered = [
        Path(path).stem for path in boot.load_order(DEPENDENCIES, ("virtio_pci", "ext4", "bridge", "br_netfilter"))
    ]
    assert ordered == [
        *("virtio", "virtio_pci"),
        *("jbd2", "mbcache", "crc16", "ext4"),
        *("llc", "stp", "bridge", "br_netfilter"),
    ]


def test_what_is_built_into_the_kernel_is_not_loaded() -> None:
    assert boot.load_order(DEPENDENCIES, ("ext5", "jbd2")) == ["kernel/fs/jbd2/jbd2.ko"]


@pytest.mark.skipif(shutil.which("cpio") is None, reason="no cpio here, which reads the archive")
def test_the_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    cpio = boot.archive({"lib": (0o40755, b""), "lib/a.ko": (0o100644, b"module"), "init": (0o100755, b"#!/bin/sh\n")})
    assert len(cpio) % 4 == 0
    subprocess.run(["cpio", "-i", "--quiet"], input=cpio, cwd=tmp_path, check=True)
    assert (tmp_path / "lib/a.ko").read_bytes() == b"module"
    assert (tmp_path / "init").stat().st_mode & 0o777 == 0o755


def test_the_kernel_inside_is_taken_out() -> None:
    assert boot.uncompressed(b"MZ stub" + lzma.compress(b"\x7fELF kernel") + b"tail") == b"\x7fELF kernel"
    assert boot.uncompressed(b"\x7fELF kernel") == b"\x7fELF kernel"


def test_the_overlay_lets_its_key_in_and_nothing_waits_for_udev() -> None:
    with tarfile.open(fileobj=BytesIO(base.overlay("ssh-ed25519 AAAA lab"))) as archive:
        key = archive.getmember("root/.ssh/authorized_keys")
        assert (key.mode, key.uid) == (0o600, 0)
        assert archive.getmember("etc/systemd/system/systemd-udevd.service").linkname == "/dev/null"
        assert archive.getmember("etc/systemd/system/default.target").linkname == "lab.target"
        assert archive.getmember("usr/local/sbin/lab-network").mode == 0o755


def test_mmdebstrap_makes_it_all_in_its_hook() -> None:
    words = base.command(Path("/cache/base.part"), "http://mirror.example/debian")
    assert words[-3:] == ["bookworm", "-", "http://mirror.example/debian"]
    assert "--customize-hook=tar-in /cache/base.part/overlay.tar /" in words
    (hook,) = (word for word in words if "mkfs.ext4" in word)
    assert "-d /cache/base.part/root /cache/base.part/disk" in hook

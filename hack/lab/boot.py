"""Makes kernel and initrd of a guest from its root file system: `python -m lab.boot ROOT INTO`.

QEMU starts an uncompressed kernel (PVH): the kernel's decompressor alone takes a minute under emulation. The initrd has
a shell and the modules that a guest needs, in the order of their dependencies.
"""

from __future__ import annotations

import lzma
import shutil
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

# To find the disks, to be a node of a network, to run containers on a bridge.
MODULES: Final = (
    "virtio_pci",
    "virtio_blk",
    "crc32c_generic",
    "ext4",
    "virtio_net",
    "overlay",
    "veth",
    "bridge",
    "br_netfilter",
)
_INIT: Final = Path(__file__).with_name("init")
_XZ: Final = b"\xfd7zXZ\x00"
_DEVICE_FOLDERS: Final = ("bin", "lib", "dev", "proc", "sys", "mnt")


def load_order(dependencies: str, modules: Iterable[str] = MODULES) -> list[str]:
    """Paths of modules, what each needs before it; `dependencies` is the text of modules.dep."""
    needs = {path: needed.split() for path, _, needed in (line.partition(":") for line in dependencies.splitlines())}
    paths = {Path(path).name.partition(".ko")[0].replace("-", "_"): path for path in needs}
    ordered: dict[str, None] = {}
    for name in modules:
        # What is built into the kernel is not in the list.
        if name not in paths:
            continue
        # modules.dep names what is needed last first.
        ordered |= dict.fromkeys((*reversed(needs[paths[name]]), paths[name]))
    return list(ordered)


def archive(files: Mapping[str, tuple[int, bytes]]) -> bytes:
    """Returns a cpio archive ("newc") of files by path, each with its mode."""
    whole = b"".join(_entry(number, *entry) for number, entry in enumerate(sorted(files.items()), 1))
    return whole + _entry(0, "TRAILER!!!", (0, b""))


def _entry(number: int, path: str, file: tuple[int, bytes]) -> bytes:
    mode, data = file
    name = path.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + name
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def uncompressed(kernel: bytes) -> bytes:
    """Returns the ELF file inside a kernel that xz compresses, as Debian's kernels; other kernels unchanged."""
    start = kernel.find(_XZ)
    return kernel if start < 0 else lzma.LZMADecompressor().decompress(kernel[start:])


def initrd(root: Path) -> bytes:
    """Returns the initrd: the root file system's own shell and modules."""
    (modules,) = (root / "usr/lib/modules").iterdir()
    folders = dict.fromkeys(_DEVICE_FOLDERS, (stat.S_IFDIR | 493, b""))
    ordered = load_order((modules / "modules.dep").read_text())
    loaded = {
        f"lib/{place:02d}-{Path(path).name}": (stat.S_IFREG | 0o644, (modules / path).read_bytes())
        for place, path in enumerate(ordered)
    }
    programs = {
        "bin/busybox": (stat.S_IFREG | 0o755, (root / "usr/bin/busybox").read_bytes()),
        "init": (stat.S_IFREG | 0o755, _INIT.read_bytes()),
    }
    return archive({**folders, **loaded, **programs})


def main(root: Path, into: Path) -> None:
    (kernel,) = (root / "boot").glob("vmlinuz-*")
    (into / "kernel").write_bytes(uncompressed(kernel.read_bytes()))
    (into / "initrd").write_bytes(initrd(root))
    shutil.copy(root / "usr/bin/busybox", into / "busybox")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))

"""`make plugin`: kubectl-topowise as a file below dist/, for this machine or all platforms, with krew's manifest."""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
from pathlib import Path
from typing import Final

import topowise
from images.application import ImageError
from laptop import archive

DIST: Final = archive.REPOSITORY / "dist"
_PYTHONS: Final = ("3.11", "3.12", "3.13")
_MACHINES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="make plugin", description=__doc__)
    parser.add_argument("--platform", action="append", choices=[*archive.PLATFORMS, "all"], default=[])
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="3.11",
        help=f"Python versions of other platforms ({', '.join(_PYTHONS)})",
    )
    parser.add_argument(
        "--with-numpy", action="store_true", help="add numpy; the file is large, and needs nothing else"
    )
    parser.add_argument("--address", default="", help="the URL under which krew finds the archives")
    options = parser.parse_args(argv)
    try:
        _make(options)
    except (archive.PackingError, ImageError) as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    return 0


def _make(options: argparse.Namespace) -> None:
    targets = [*archive.PLATFORMS] if "all" in options.platform else options.platform
    version = topowise.__version__
    digests = {}
    for target in targets or [_this_platform()]:
        program = DIST / target / archive.NAME if targets else DIST / archive.NAME
        with tempfile.TemporaryDirectory() as folder:
            native = (
                archive.fetched(target, options.python or _PYTHONS, Path(folder), with_numpy=options.with_numpy)
                if targets
                else archive.of_this_python(with_numpy=options.with_numpy)
            )
            archive.pack(program, native)
        packed = DIST / archive.archive_name(target)
        digests[target] = archive.packed(program, archive.REPOSITORY / "LICENSE", packed)
        size, pythons_of_it = program.stat().st_size / (1 << 20), ", ".join(native)
        print(f"plugin: {_short(program)}, {size:.1f} MiB, for {pythons_of_it} of {target}; {packed.name} for krew")
    address = options.address or f"{archive.FORGE}/releases/download/v{version}"
    (DIST / "topowise.yaml").write_text(archive.manifest(version, digests, address))
    print(f"plugin: {_short(DIST / 'topowise.yaml')}, krew's manifest of {len(digests)} platform(s)")


def _this_platform() -> str:
    return f"{sys.platform}-{_MACHINES.get(platform.machine().lower(), platform.machine())}"


def _short(path: Path) -> str:
    return str(path.relative_to(archive.REPOSITORY))


if __name__ == "__main__":
    sys.exit(main())

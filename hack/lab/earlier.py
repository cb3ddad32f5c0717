"""An earlier commit of the project as the start of an upgrade: its chart, and its daemons with the present libraries.

tests/e2e/test_upgrade.py does the same with processes. The earlier libraries would need another download; an upgrade
can break objects and configuration, which depend on code and chart only.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from images import engines
from images.application import REPOSITORY
from lab.errors import LabError

TAG: Final = "earlier"
_PACKAGES: Final = {"topowise": "proto", "topowise_exporter": "exporter", "topowise_scheduler": "plugin"}
_LIB: Final = "/opt/topowise/lib"


def unpack(commit: str, folder: Path) -> None:
    """Its packages and charts. Raises LabError."""
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", commit, "charts", *_PACKAGES.values()],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        raise LabError(f"commit {commit} is not in the local history: {done.stderr.decode()[-200:]}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for template in (folder / "charts/topowise/templates").rglob("*.tpl"):
        template.write_text(patient(template.read_text()))


def patient(template: str) -> str:
    """Charts had no start-up probe once, and under emulation an exporter starts longer than liveness waits."""
    return template.replace("failureThreshold: 3\n", "failureThreshold: 60\n")


def image(folder: Path, on: str, name: str, target: Path) -> None:
    """Builds an image of the unpacked earlier sources on today's image, and writes its archive."""
    engine = engines.find()
    file = folder / "Dockerfile"
    file.write_text(dockerfile(on))
    engine.run("build", "--pull=never", f"--file={file}", f"--tag={name}", str(folder))
    engine.run("push", name, f"docker-archive:{target}:{name}")


def dockerfile(on: str) -> str:
    """Bytecode beside the sources is of today's, and never held against them: it goes with them."""
    places = " ".join(f"{_LIB}/{package}" for package in _PACKAGES)
    copies = [f"COPY {room}/{package} {_LIB}/{package}" for package, room in _PACKAGES.items()]
    compiled = f"RUN python3 -m compileall -q --invalidation-mode unchecked-hash {places}"
    return "\n".join((f"FROM {on}", "USER 0", f"RUN rm -rf {places}", *copies, compiled, "USER 65532:65532", ""))

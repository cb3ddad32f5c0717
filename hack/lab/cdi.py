"""Files of the Container Device Interface: a DRA driver writes them, and a container runtime reads them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

FOLDER: Final = Path("/var/run/cdi")


def device_id(driver: str, claim: str, device: str) -> str:
    """Returns the fully qualified name of a device of a claim."""
    return f"{driver}/claim={claim}-{device}"


def write(driver: str, claim: str, devices: Collection[str], folder: Path = FOLDER) -> None:
    """Describes the devices of a claim."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [
        {"name": f"{claim}-{device}", "containerEdits": {"env": [f"DEVICE_{number}={device}"]}}
        for number, device in enumerate(devices)
    ]
    path = _path(driver, claim, folder)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": f"{driver}/claim", "devices": listed}))
    part.replace(path)


def remove(driver: str, claim: str, folder: Path = FOLDER) -> None:
    """Removes the description of a claim's devices."""
    _path(driver, claim, folder).unlink(missing_ok=True)


def described(folder: Path = FOLDER) -> set[str]:
    """Returns the names of all described devices."""
    names: set[str] = set()
    for path in folder.glob("*.json"):
        # The driver may just have removed it.
        with contextlib.suppress(FileNotFoundError):
            file = json.loads(path.read_text())
            names.update(f"{file['kind']}={device['name']}" for device in file["devices"])
    return names


def _path(driver: str, claim: str, folder: Path) -> Path:
    return folder / f"{driver}-{claim}.json"

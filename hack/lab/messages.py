"""What the DRA driver and the container runtime both speak.

Classes of protobuf messages from tables, where a few messages of an API are enough; and files of the Container Device
Interface, which the driver writes and the runtime reads.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGE: Final[Any] = 11
_SCALARS: Final[dict[str, Any]] = {"bool": 8, "string": 9, "int64": 3, "int32": 5, "uint64": 4, "uint32": 13}


def classes(package: str, tables: Mapping[str, Mapping[int, str]]) -> dict[str, Any]:
    """Returns the message classes by name.

    A table has the fields of a message by number, as "name kind". `*` before the kind repeats, `%` is a map from
    strings to the kind, by default to strings. A kind that is no scalar is another message of the tables.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        for number, spelt in fields.items():
            _add(package, message, number, *spelt.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in tables}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


def _add(package: str, message: Any, number: int, name: str, kind: str) -> None:
    added = message.field.add(name=name, number=number, label=3 if kind[0] in "*%" else 1)
    if kind[0] == "%":
        entry = message.nested_type.add(name="".join(map(str.capitalize, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _add(package, entry, 1, "key", "string")
        _add(package, entry, 2, "value", kind[1:] or "string")
        added.type, added.type_name = _MESSAGE, f".{package}.{message.name}.{entry.name}"
        return
    kind = kind.removeprefix("*")
    added.type = _SCALARS.get(kind, _MESSAGE)
    if kind not in _SCALARS:
        added.type_name = f".{package}.{kind}"


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

"""A DRA driver of a node, for PCI functions of a class: python -m lab.dra DRIVER NODE KUBECONFIG.

It registers with the kubelet (pluginregistration v1), serves DRAPlugin v1, and publishes the node's ResourceSlice with
the node's own user. A prepared claim is a file of CDI and an entry of PREPARED, so both survive a restart of this
process. The kubelet deletes the ResourceSlices of the node at its start, so the slice is compared every second.
"""

from __future__ import annotations

import argparse
import json
import threading
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from lab import messages
from lab.api import Api, Json

KUBELET: Final = Path("/var/lib/kubelet")
# The lab compares it with claims and podresources.
PREPARED: Final = KUBELET / "lab-prepared"
PCI: Final = Path("/host/sys/bus/pci/devices")
VERSION: Final = "v1.DRAPlugin"
REGISTRATION: Final = "pluginregistration"
PLUGIN: Final = "k8s.io.kubelet.pkg.apis.dra.v1"
# As k8s.io/kubelet's pluginregistration/v1 and dra/v1.
KINDS: Final = messages.classes(
    REGISTRATION,
    {
        "InfoRequest": {},
        "PluginInfo": {1: "type string", 2: "name string", 3: "endpoint string", 4: "supported_versions *string"},
        "RegistrationStatus": {1: "plugin_registered bool", 2: "error string"},
        "RegistrationStatusResponse": {},
    },
) | messages.classes(
    PLUGIN,
    {
        "Claim": {1: "namespace string", 2: "uid string", 3: "name string"},
        "Device": {
            1: "request_names *string",
            2: "pool_name string",
            3: "device_name string",
            4: "cdi_device_ids *string",
        },
        "NodePrepareResourcesRequest": {1: "claims *Claim"},
        "NodePrepareResourcesResponse": {1: "claims %NodePrepareResourceResponse"},
        "NodePrepareResourceResponse": {1: "devices *Device", 2: "error string"},
        "NodeUnprepareResourcesRequest": {1: "claims *Claim"},
        "NodeUnprepareResourcesResponse": {1: "claims %NodeUnprepareResourceResponse"},
        "NodeUnprepareResourceResponse": {1: "error string"},
    },
)
GROUP: Final = "/apis/resource.k8s.io/v1"
STANDARD: Final = "resource.kubernetes.io"
ATTRIBUTES: Final = ("numaNode", "pciBusID", "pcieRoot")
# Orders of the devices in the slice: kube-scheduler takes the first free devices.
ORDERS: Final = ("ascending", "alternating", "descending")
_EVERY_S: Final = 1.0


class Function(NamedTuple):
    """A PCI function with its NUMA node and its root complex, as /sys has them."""

    address: str
    numa: int
    root: str

    @property
    def device(self) -> str:
        """The name of its device, a DNS label."""
        return device_name(self.address)


def device_name(address: str) -> str:
    """Returns the name of the device with this PCI address."""
    return "gpu-" + address.replace(":", "-").replace(".", "-")


def functions(pci_class: str, pci: Path = PCI) -> list[Function]:
    """Returns the functions whose class begins with these digits, by address."""
    return [
        Function(path.name, int((path / "numa_node").read_text()), _root(path.resolve()))
        for path in sorted(pci.iterdir())
        if (path / "class").read_text().removeprefix("0x").startswith(pci_class)
    ]


def _root(path: Path) -> str:
    """Returns the root complex above a function."""
    return next(part for part in path.parts if part.startswith("pci") and ":" in part)


def ordered(found: Sequence[Function], order: str) -> list[Function]:
    """Returns the functions in an order of `ORDERS`: by NUMA node, from each NUMA node in turn, or the last first."""
    if order == "descending":
        return sorted(found, key=lambda function: (-function.numa, function.address))
    if order == "alternating":
        place = {
            function: sum(other.numa == function.numa and other.address < function.address for other in found)
            for function in found
        }
        return sorted(found, key=lambda function: (place[function], function.numa))
    return sorted(found, key=lambda function: (function.numa, function.address))


def slice_of(driver: str, node: str, listed: Sequence[Function], attributes: Sequence[str]) -> Json:
    """Returns the ResourceSlice of a node."""

    def device(function: Function) -> Json:
        values: dict[str, Json] = {
            "numaNode": {"int": function.numa},
            "pciBusID": {"string": function.address},
            "pcieRoot": {"string": function.root},
        }
        return {
            "name": function.device,
            "attributes": {f"{STANDARD}/{attribute}": values[attribute] for attribute in attributes},
        }

    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [device(function) for function in listed],
        },
    }


def client(kubeconfig: Path) -> Api:
    """Returns a client with the user of a kubeconfig in JSON."""
    config = json.loads(kubeconfig.read_text())
    return Api(config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"])


def publish(api: Api, whole: Json) -> None:
    """Creates the ResourceSlice if there is none. Raises OSError."""
    # A node may list its own slices, and get only a slice that exists.
    query = urllib.parse.urlencode({"fieldSelector": f"spec.nodeName={whole['spec']['nodeName']}"})
    listed = api.items(f"{GROUP}/resourceslices?{query}")
    if whole["metadata"]["name"] not in [item["metadata"]["name"] for item in listed]:
        api.create(f"{GROUP}/resourceslices", whole)


class Driver:
    """`prepared` has the names of the prepared devices by uid of their claim, as the file."""

    def __init__(
        self, name: str, node: str, claim_of: Callable[[str, str], Json], file: Path, cdi_folder: Path
    ) -> None:
        self._name, self._node, self._claim_of = name, node, claim_of
        self._file, self._cdi = file, cdi_folder
        self._lock = threading.Lock()
        self.prepared: dict[str, Json] = json.loads(file.read_text()) if file.exists() else {}

    def info(self, request: Any) -> Any:
        """Without an endpoint, the kubelet uses the socket of the registration."""
        return KINDS["PluginInfo"](type="DRAPlugin", name=self._name, supported_versions=[VERSION])

    def registered(self, request: Any) -> Any:
        print("registered" if request.plugin_registered else f"not registered: {request.error}", flush=True)
        return KINDS["RegistrationStatusResponse"]()

    def prepare(self, request: Any) -> Any:
        """Prepares the devices that kube-scheduler has allocated to the claims; an error concerns a single claim."""
        answer = KINDS["NodePrepareResourcesResponse"]()
        for claim in request.claims:
            answer.claims[claim.uid].CopyFrom(self._prepare(claim))
        return answer

    def _prepare(self, claim: Any) -> Any:
        answer = KINDS["NodePrepareResourceResponse"]()
        try:
            stored = self._claim_of(claim.namespace, claim.name)
        except OSError as exc:
            answer.error = f"claim {claim.namespace}/{claim.name} cannot be read: {exc}"
            return answer
        if stored["metadata"]["uid"] != claim.uid:
            answer.error = f"claim {claim.namespace}/{claim.name} has uid {stored['metadata']['uid']}, not {claim.uid}"
            return answer
        results = ((stored.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", [])
        own = [result for result in results if (result["driver"], result["pool"]) == (self._name, self._node)]
        names = [result["device"] for result in own]
        with self._lock:
            taken = {
                device
                for uid, other in self.prepared.items()
                if uid != claim.uid
                for device in other["devices"]
                if device in names
            }
            if taken:
                answer.error = f"{', '.join(sorted(taken))} of {claim.name} are prepared for another claim"
                return answer
            messages.write(self._name, claim.uid, names, self._cdi)
            self._keep({**self.prepared, claim.uid: {"claim": claim.name, "devices": names}})
        for result in own:
            answer.devices.add(
                request_names=[result["request"]],
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=[messages.device_id(self._name, claim.uid, result["device"])],
            )
        return answer

    def unprepare(self, request: Any) -> Any:
        """Frees the devices of claims; claims that are not prepared are no error."""
        answer = KINDS["NodeUnprepareResourcesResponse"]()
        with self._lock:
            for claim in request.claims:
                answer.claims[claim.uid].SetInParent()
                messages.remove(self._name, claim.uid, self._cdi)
                self._keep({uid: other for uid, other in self.prepared.items() if uid != claim.uid})
        return answer

    def _keep(self, prepared: dict[str, Json]) -> None:
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(prepared))
        part.replace(self._file)
        self.prepared = prepared


def handlers(driver: Driver) -> list[Any]:
    """Returns the handlers of both services."""
    calls: Mapping[str, Mapping[str, tuple[Callable[[Any], Any], str]]] = {
        f"{REGISTRATION}.Registration": {
            "GetInfo": (driver.info, "InfoRequest"),
            "NotifyRegistrationStatus": (driver.registered, "RegistrationStatus"),
        },
        f"{PLUGIN}.DRAPlugin": {
            "NodePrepareResources": (driver.prepare, "NodePrepareResourcesRequest"),
            "NodeUnprepareResources": (driver.unprepare, "NodeUnprepareResourcesRequest"),
        },
    }
    return [
        grpc.method_handlers_generic_handler(
            service, {call: _handler(act, request) for call, (act, request) in methods.items()}
        )
        for service, methods in calls.items()
    ]


def _handler(act: Callable[[Any], Any], request: str) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        lambda sent, _: act(sent), KINDS[request].FromString, lambda reply: reply.SerializeToString()
    )


def serve(driver: Driver, socket: Path) -> grpc.Server:
    """Serves at a socket, which the kubelet finds in its folder."""
    socket.parent.mkdir(exist_ok=True)
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(handlers(driver))
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("driver")
    parser.add_argument("node")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--pci-class", default="0302")
    parser.add_argument("--attribute", action="append", choices=ATTRIBUTES, required=True)
    parser.add_argument("--order", choices=ORDERS, default=ORDERS[0])
    args = parser.parse_args()
    api = client(args.kubeconfig)
    listed = ordered(functions(args.pci_class), args.order)
    print("devices", [function.device for function in listed], flush=True)

    def claim_of(namespace: str, name: str) -> Json:
        return api.call("GET", f"{GROUP}/namespaces/{_quoted(namespace)}/resourceclaims/{_quoted(name)}")

    driver = Driver(args.driver, args.node, claim_of, PREPARED, messages.FOLDER)
    # A server that nothing refers to ends.
    server = serve(driver, KUBELET / f"plugins_registry/{args.driver}-reg.sock")
    whole = slice_of(args.driver, args.node, listed, args.attribute)
    while True:
        try:
            publish(api, whole)
        except OSError as exc:
            print("the slice is not published yet:", repr(exc)[:200], flush=True)
        server.wait_for_termination(_EVERY_S)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


if __name__ == "__main__":
    main()

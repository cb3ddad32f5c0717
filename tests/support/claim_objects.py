"""ResourceSlices, ResourceClaims and DeviceClasses for tests of the scheduler service, as the watch brings them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from scheduling import Service, decoded, exact, kubelet, pod
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.options.claims import objects, watch
from topowise_scheduler.options.claims.claimed_nodes import ClaimSettings
from topowise_scheduler.options.claims.ledger import Claims, Sized
from topowise_scheduler.verdicts.kube_scheduler import Node

DRIVER = "gpu.example.com"


def device_slice(node: str, numa: Sequence[int | None], *, driver: str = DRIVER, name: str = "") -> dict[str, Any]:
    """Returns the slice of a node with the devices gpu-0, gpu-1, … on these NUMA nodes."""
    attributes = [{} if at is None else {"resource.kubernetes.io/numaNode": {"int": at}} for at in numa]
    return {
        "metadata": {"name": name or f"{node}-{driver}"},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{at}", "attributes": named} for at, named in enumerate(attributes)],
        },
    }


def claim(
    name: str,
    count: int = 1,
    devices: Iterable[str] | None = None,
    *,
    node: str = "n1",
    version: int = 1,
    reserved: Iterable[str] = (),
    owner: str = "",
    **fields: Any,
) -> dict[str, Any]:
    """Returns a claim for `count` devices; `devices` of the node are allocated to it, None: it has no allocation. Pods
    `reserved` it (UIDs), and the claim was made for the pod `owner`."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}}
    document: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
        },
        "spec": {"devices": {"requests": [request]}},
        "status": {},
    }
    if devices is not None:
        results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": device, **fields} for device in devices]
        document["status"] = {"allocation": {"devices": {"results": results}}}
    if reserved:
        document["status"]["reservedFor"] = [{"resource": "pods", "name": uid, "uid": uid} for uid in reserved]
    if owner:
        document["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": owner, "uid": owner, "controller": True}]
    return document


def template(name: str, count: int = 1) -> dict[str, Any]:
    """Returns a ResourceClaimTemplate whose claims are for `count` devices."""
    of_claim = claim(name, count)
    return {"metadata": of_claim["metadata"], "spec": {"metadata": {"labels": {"a": "b"}}, "spec": of_claim["spec"]}}


def sized_claim(document: dict[str, Any]) -> Sized[objects.ResourceClaim]:
    """Returns a claim as the reflector decodes it."""
    raw = msgspec.json.encode(document)
    return Sized(objects.decode_claim(raw), len(raw))


def sized_slice(document: dict[str, Any]) -> Sized[objects.ResourceSlice]:
    """Returns a slice as the reflector decodes it."""
    raw = msgspec.json.encode(document)
    return Sized(objects.decode_slice(raw), len(raw))


def new_claims(drivers: Iterable[str] = (DRIVER,), **options: Any) -> Claims:
    """Returns a ledger of claims with a class for all devices; those of `drivers` are allocated here."""
    claims = Claims(drivers, **options)
    put_class(claims, "gpu")
    return claims


def put_class(claims: Claims, name: str, **spec: Any) -> None:
    """The watch brings a class."""
    raw = msgspec.json.encode({"metadata": {"name": name}, "spec": spec})
    claims.put_class(Sized(objects.decode_class(raw), len(raw)))


class ClaimService(Service):
    """A service with claims; `markers` are those of each node, None for a service without steering. Without `drivers`
    kube-scheduler allocates all devices."""

    def __init__(
        self,
        *,
        markers: int | None = None,
        alignment: Any = "prefer",
        drivers: Iterable[str] = (DRIVER,),
        **options: Any,
    ) -> None:
        self.claims = new_claims(drivers)
        super().__init__(
            "TightFit",
            markers=lambda name: markers,
            steers=markers is not None,
            claims=ClaimSettings(self.claims, self._node, alignment),
            **options,
        )

    def _node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def add_node(self, name: str, *numa: int | None) -> None:
        """A node joins with an empty kubelet, and devices on these NUMA nodes."""
        self.put_node(name)
        self.report(exact(kubelet(), name=name))
        self.put_devices(name, *numa)

    def put_claim(self, name: str, count: int = 1, devices: Iterable[str] | None = None, **fields: Any) -> None:
        """The watch brings a claim."""
        self.claims.put_claim(sized_claim(claim(name, count, devices, **fields)))

    def put_template(self, name: str, count: int = 1) -> None:
        """The watch brings a ResourceClaimTemplate."""
        self.claims.put_claim(watch.decode_template(msgspec.json.encode(template(name, count))))

    def put_devices(self, node: str, *numa: int | None) -> None:
        """The watch brings the slice of a node."""
        self.claims.put_slice(sized_slice(device_slice(node, numa)))


class FilledService(ClaimService):
    """A service whose nodes have real kubelets. With `markers` it steers."""

    def __init__(self, *numa: int, markers: int | None = None, **options: Any) -> None:
        super().__init__(markers=markers, **options)
        self.steers = markers is not None
        self.kubelets: dict[str, Kubelet] = {}
        self.add("n1", *numa)
        self.put_claim("new")

    def add(self, name: str, *numa: int) -> None:
        """A node joins, whose devices are on these NUMA nodes."""
        self.kubelets[name] = kubelet()
        self.put_node(name)
        self.report(exact(self.kubelets[name], name=name))
        self.put_devices(name, *numa)

    def run(self, name: str, cpu: str, *devices: str, node: str = "n1", **fields: Any) -> str:
        """A pod runs on a node; with a claim if it has devices. Returns its UID."""
        uid = f"uid-{name}"
        if devices:
            self.put_claim(f"of-{name}", len(devices), devices, node=node, reserved=[uid], owner=uid)
        of_pod = [f"of-{name}"] if devices else []
        fields = {"priority": 0, **fields}
        document = claiming(name, cpu, *of_pod, node=node, phase="Running", **fields)
        running = self.kubelets[node]
        assert running.admit(decoded(document)).admitted
        self.put(document, is_news=False)
        self.report(exact(running, version=str(len(running.active) + 1), name=node))
        return uid

    def end(self, name: str, node: str = "n1") -> None:
        """A pod ends, and with it its claim."""
        running = self.kubelets[node] = self.kubelets[node].without([f"uid-{name}"])
        self.claims.drop_claim(f"default/of-{name}")
        self.ledger.drop_pod(f"uid-{name}")
        self.report(exact(running, version=str(50 - len(running.active)), name=node))


def from_templates(name: str, cpu: str = "2", *templates: str, alignment: str = "", **fields: Any) -> dict[str, Any]:
    """Returns a pod whose claims are to be made from these templates."""
    document = claiming(name, cpu, *templates, alignment=alignment, **fields)
    for item in document["spec"]["resourceClaims"]:
        item["resourceClaimTemplateName"] = item.pop("resourceClaimName")
    return document


def claiming(name: str, cpu: str = "2", *claims: str, alignment: str = "", **fields: Any) -> dict[str, Any]:
    """Returns a pod with claims of these names."""
    annotations = fields.pop("annotations", {}) | ({"topowise.io/claim-alignment": alignment} if alignment else {})
    listed = [{"name": f"c{at}", "resourceClaimName": claim} for at, claim in enumerate(claims)]
    return pod(name, cpu, resourceClaims=listed, annotations=annotations, **fields)

"""The DRA driver of the lab, and why a pod is not near its claimed devices."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import grpc
import pytest

from lab import machine, truth
from lab.claimed import ALIGNED, ELSEWHERE, LOWEST, NOWHERE, OTHER, Device, Nodes, Seen
from lab.native import cdi, dra
from lab.native.nodes import described
from lab.native.runtime import KINDS, RefusedError, Runtime
from lab.parts.claims import REFUSED_BIND
from sandbox.machines import write_tree
from topowise.claimed_devices import location
from topowise_scheduler.claims.numa_nodes import numa_nodes_of
from topowise_scheduler.extender import binding

DRIVER = "gpu.example.com"


def _functions(folder: Path) -> list[dra.Function]:
    sysfs, _ = write_tree(described(machine.read("dual")), folder)
    return dra.functions("0302", sysfs / "bus/pci/devices")


@pytest.mark.parametrize("attributes", [("numaNode", "pcieRoot"), ("pciBusID",), ("pcieRoot",)])
def test_every_rule_locates_the_devices_of_a_machine(tmp_path: Path, attributes: tuple[str, ...]) -> None:
    listed = _functions(tmp_path)
    published = dra.slice_of(DRIVER, "dual", listed, attributes)["spec"]["devices"]
    roots = ",".join(sorted({f"{function.root}={function.numa}" for function in listed}))
    numa_nodes = numa_nodes_of({0, 1}, roots)
    located = {device["name"]: numa_nodes.of(_location(device["attributes"])) for device in published}
    assert located == {function.device: function.numa for function in listed}
    assert sorted(located.values()) == [0] * 4 + [1] * 4


def _location(attributes: dict[str, dict[str, Any]]) -> Any:
    class Attribute:
        def __init__(self, value: dict[str, Any]) -> None:
            self.integer, self.string = value.get("int"), value.get("string")
            self.ints = self.strings = None

    return location({name: Attribute(value) for name, value in attributes.items()}, DRIVER)


def test_the_devices_of_a_slice_have_an_order(tmp_path: Path) -> None:
    listed = _functions(tmp_path)
    orders = {order: [function.numa for function in dra.ordered(listed, order)] for order in dra.ORDERS}
    assert orders == {
        "ascending": [0, 0, 0, 0, 1, 1, 1, 1],
        "alternating": [0, 1, 0, 1, 0, 1, 0, 1],
        "descending": [1, 1, 1, 1, 0, 0, 0, 0],
    }


def test_the_agent_names_the_numa_nodes_of_devices() -> None:
    sys = {"bus/pci/devices/0000:18:00.0/numa_node": "1\n", "bus/pci/devices/0000:18:00.0/class": "0x030200\n"}
    assert truth.functions(sys) == {"gpu-0000-18-00-0": 1}


def _claim(uid: str, *devices: str, driver: str = DRIVER, pool: str = "dual") -> dict[str, Any]:
    results = [{"driver": driver, "pool": pool, "device": device, "request": "gpus"} for device in devices]
    return {"metadata": {"uid": uid}, "status": {"allocation": {"devices": {"results": results}}}}


class _Kubelet:
    """Calls the driver as a kubelet does, over its socket."""

    def __init__(self, folder: Path, claims: dict[str, dict[str, Any]]) -> None:
        self._folder, self._claims = folder, claims
        self.driver = dra.Driver(DRIVER, "dual", self._claim_of, folder / "prepared", folder / "cdi")
        # An earlier server of the folder may still remove its socket.
        socket = Path(tempfile.mkdtemp(dir=folder)) / "dra.sock"
        self._server = dra.serve(self.driver, socket)
        self._channel = grpc.insecure_channel(f"unix://{socket}", [("grpc.default_authority", "localhost")])

    def _claim_of(self, namespace: str, name: str) -> dict[str, Any]:
        try:
            return self._claims[f"{namespace}/{name}"]
        except KeyError:
            raise FileNotFoundError(name) from None

    def call(self, service: str, method: str, request: Any, answer: str) -> Any:
        call: Any = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=dra.KINDS[answer].FromString,
        )
        return call(request, timeout=60)

    def prepare(self, uid: str, name: str) -> Any:
        request = dra.KINDS["NodePrepareResourcesRequest"]()
        request.claims.add(namespace="default", uid=uid, name=name)
        answer = self.call(f"{dra.PLUGIN}.DRAPlugin", "NodePrepareResources", request, "NodePrepareResourcesResponse")
        return answer.claims[uid]

    def unprepare(self, uid: str) -> Any:
        request = dra.KINDS["NodeUnprepareResourcesRequest"]()
        request.claims.add(namespace="default", uid=uid, name="c")
        service, answer = f"{dra.PLUGIN}.DRAPlugin", "NodeUnprepareResourcesResponse"
        return self.call(service, "NodeUnprepareResources", request, answer).claims

    def end(self) -> None:
        self._channel.close()
        self._server.stop(0).wait(60)


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The path of a socket has at most 107 bytes.
    return tmp_path_factory.mktemp("dra")


def test_a_kubelet_registers_the_driver(folder: Path) -> None:
    kubelet = _Kubelet(folder, {})
    service = f"{dra.REGISTRATION}.Registration"
    info = kubelet.call(service, "GetInfo", dra.KINDS["InfoRequest"](), "PluginInfo")
    assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", DRIVER, ["v1.DRAPlugin"])
    registered = dra.KINDS["RegistrationStatus"](plugin_registered=True)
    kubelet.call(service, "NotifyRegistrationStatus", registered, "RegistrationStatusResponse")
    kubelet.end()


def test_a_claim_is_prepared_and_its_container_gets_the_devices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubelet = _Kubelet(folder, {"default/c": _claim("u", "gpu-a", "gpu-b")})
    devices = kubelet.prepare("u", "c").devices
    assert [(device.pool_name, device.device_name) for device in devices] == [("dual", "gpu-a"), ("dual", "gpu-b")]
    names = [name for device in devices for name in device.cdi_device_ids]
    assert cdi.described(folder / "cdi") == set(names) == {f"{DRIVER}/claim=u-gpu-a", f"{DRIVER}/claim=u-gpu-b"}
    assert json.loads((folder / "prepared").read_text()) == {"u": {"claim": "c", "devices": ["gpu-a", "gpu-b"]}}

    request = KINDS["CreateContainerRequest"](pod_sandbox_id="s")
    request.config.CDI_devices.extend(KINDS["CDIDevice"](name=name) for name in names)
    monkeypatch.setattr(cdi.described, "__defaults__", (folder / "cdi",))
    assert Runtime().create_container(request).container_id
    assert list(kubelet.unprepare("u")) == ["u"]
    with pytest.raises(RefusedError, match=f"{DRIVER}/claim=u-gpu-a"):
        Runtime().create_container(request)
    kubelet.end()


def test_a_file_that_is_removed_meanwhile_describes_nothing(tmp_path: Path) -> None:
    cdi.write(DRIVER, "u", ["gpu-a"], tmp_path)
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    assert cdi.described(tmp_path) == {f"{DRIVER}/claim=u-gpu-a"}


def test_a_prepared_claim_survives_the_driver(folder: Path) -> None:
    claims = {"default/c": _claim("u", "gpu-a"), "default/d": _claim("v", "gpu-a")}
    kubelet = _Kubelet(folder, claims)
    kubelet.prepare("u", "c")
    kubelet.end()
    kubelet = _Kubelet(folder, claims)
    assert kubelet.prepare("u", "c").error == ""
    assert kubelet.prepare("v", "d").error == "gpu-a of d are prepared for another claim"
    kubelet.unprepare("u")
    assert kubelet.prepare("v", "d").error == ""
    kubelet.end()


@pytest.mark.parametrize(
    ("claims", "error"),
    [
        ({}, "claim default/c cannot be read: c"),
        ({"default/c": _claim("w", "gpu-a")}, "claim default/c has uid w, not u"),
    ],
)
def test_a_claim_that_is_another_is_not_prepared(folder: Path, claims: dict[str, Any], error: str) -> None:
    kubelet = _Kubelet(folder, claims)
    assert kubelet.prepare("u", "c").error == error
    assert kubelet.driver.prepared == {}
    kubelet.end()


def test_devices_of_other_drivers_and_nodes_are_not_its_own(folder: Path) -> None:
    mixed = _claim("u", "gpu-a")
    for other in (_claim("u", "nic-a", driver="nic.example.com"), _claim("u", "gpu-b", pool="dual-2")):
        mixed["status"]["allocation"]["devices"]["results"] += other["status"]["allocation"]["devices"]["results"]
    kubelet = _Kubelet(folder, {"default/c": mixed})
    assert [device.device_name for device in kubelet.prepare("u", "c").devices] == ["gpu-a"]
    kubelet.end()


DEVICES = {numa: [Device(f"gpu-{numa}-{number}", numa) for number in range(2)] for numa in (0, 1)}
NODES = Nodes({"a": {0: 4, 1: 4}, "b": {0: 4, 1: 4}}, {"a": DEVICES[0] + DEVICES[1], "b": DEVICES[1] + DEVICES[0]})


def _seen(node: str, cpus: dict[int, int], numa: int, count: int = 1, first: int = 0) -> Seen:
    devices = frozenset(DEVICES[numa][first : first + count])
    return Seen(node, cpus, frozenset(cpus), devices, frozenset(cpus))


def test_the_next_devices_are_the_first_free_ones() -> None:
    assert (NODES.next_numa("a", 1, {}), NODES.next_numa("b", 1, {})) == (0, 1)
    taken = {"p": _seen("a", {0: 1}, 0)}
    assert (NODES.next_numa("a", 1, taken), NODES.next_numa("a", 2, taken)) == (0, 1)
    both = {**taken, "q": _seen("a", {1: 1}, 1)}
    assert NODES.next_numa("a", 2, both) is None
    assert NODES.free("a", both) == {0: 3, 1: 3}


@pytest.mark.parametrize(
    ("pod", "running", "cause"),
    [
        (_seen("a", {0: 2}, 0), {}, ALIGNED),
        (_seen("b", {0: 2}, 1), {}, LOWEST),
        (_seen("a", {1: 2}, 0), {}, OTHER),
        (_seen("a", {1: 4}, 0, first=1), {"p": _seen("a", {0: 2}, 0)}, ELSEWHERE),
        (
            _seen("a", {1: 4}, 0, first=1),
            {"p": _seen("a", {0: 2}, 0), "q": Seen("b", {1: 2}, frozenset({1}), frozenset(), frozenset())},
            NOWHERE,
        ),
    ],
)
def test_a_pod_that_is_apart_has_a_cause(pod: Seen, running: dict[str, Seen], cause: str) -> None:
    assert NODES.cause(pod, running) == cause


def test_refused_binds_are_counted_by_the_words_of_the_service() -> None:
    assert REFUSED_BIND in Path(binding.__file__).read_text()


def test_a_second_machine_of_a_kind_has_a_name_of_its_own() -> None:
    first, second = machine.read("dual"), machine.read("dual-2")
    assert (first.name, first.copy, second.name, second.copy) == ("dual", 1, "dual-2", 2)
    assert second.nodes == first.nodes

"""Every parser of external text, with valid samples.

The contract of a parser: it returns a value, or raises an error with a one-line message, within a second and some MiB
for 100 KB of any input. tests/unit/fuzz checks the contract, and `make fuzz` for a chosen time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from sandbox import machines
from sandbox.exported import exported
from scheduling import configuration
from topowise import (
    attributes,
    cpuset,
    documents,
    fingerprint,
    kubeletconfig,
    nrt,
    numaplacement,
    pci,
    pods,
)
from topowise import quantity as quantities
from topowise import steering as steering_requests
from topowise.attributes import confirmation, cores, devices, holdings, pci_devices
from topowise.errors import ParseError, TopowiseError
from topowise.kube import kubeconfig
from topowise.kubeletconfig import KubeletConfiguration
from topowise.runtime import config
from topowise.wire import podresources_pb2 as pb
from topowise.wire import pods_pb2
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.dra import slices
from topowise_exporter.kubelet import device_checkpoint, podresources, pods_api, state_files
from topowise_exporter.kubelet.allocations import Allocatable
from topowise_exporter.kubelet.settings import configz, sources
from topowise_exporter.kubelet.settings.sources import Overrides
from topowise_exporter.machine import Machine as ScannedMachine
from topowise_exporter.machine import scan
from topowise_exporter.node_files import NodeFiles
from topowise_exporter.publish import numatopology
from topowise_exporter.state_file_check import StartCheck
from topowise_scheduler import report
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.controllers import kueue_objects as kueue
from topowise_scheduler.kubelet import Core, Device, DevicePlugin, Kubelet, Machine, MemoryBlock, NumaNode, Placement
from topowise_scheduler.ledger.budgets import decode_budget
from topowise_scheduler.ledger.pods.records import Records
from topowise_scheduler.options.claims import semver
from topowise_scheduler.options.claims.cel import expressions, values
from topowise_scheduler.options.claims.objects import Device as ClaimedDevice
from topowise_scheduler.options.claims.objects import DeviceAttribute, decode_claim, decode_class, decode_slice
from topowise_scheduler.options.claims.work import EvaluationError, NotModelledError
from topowise_scheduler.options.device_affinity import affinity_terms
from topowise_scheduler.report import timestamps
from topowise_scheduler.verdicts import policy_annotations

GI = 1 << 30


class Parser(NamedTuple):
    """`refusals` are the errors it may end with."""

    name: str
    parse: Callable[[bytes], object]
    samples: tuple[bytes, ...]
    refusals: tuple[type[Exception], ...] = (TopowiseError,)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    # What comes from JSON or a decoded file is text; surrogates stand for bytes that are none.
    return lambda data: parse(data.decode("utf-8", "replace"))


def _quantity(text: str) -> object:
    return quantities.value(text), quantities.milli_value(text), quantities.whole(text)


def _threshold(text: str) -> object:
    return kubeletconfig.eviction_threshold(text, 1 << 40)


def _cpus(text: str) -> object:
    members = cpuset.parse(text)
    mask = cpuset.mask(text)
    assert mask.bit_count() == len(members)
    assert all(mask >> member & 1 for member in members)
    assert cpuset.parse(cpuset.to_text(members)) == members
    return members


def _placement(text: str) -> object:
    metadata, _, vector = text.partition(" ")
    return numaplacement.decode(metadata, {1: vector})


def _places(text: str) -> object:
    devices = pci_devices.read(text)
    written = pci_devices.write(devices)
    assert written.omitted or pci_devices.read(written.text) == devices
    return [
        pci.distance(first.place, second.place) for first in list(devices.values())[:8] for second in devices.values()
    ]


def _link(text: str) -> object:
    return pci.path_of(text, text.rpartition("/")[2])


def _named(text: str) -> object:
    policy, _, scope = text.partition(" ")
    named = {attributes.TOPOLOGY_MANAGER_POLICY: policy, attributes.TOPOLOGY_MANAGER_SCOPE: scope}
    return attributes.policy_and_scope(named)


def _demand(text: str) -> object:
    own, _, volcano = text.partition(" ")
    return policy_annotations.demand(
        {policy_annotations.POLICY_ANNOTATION: own, policy_annotations.VOLCANO_ANNOTATION: volcano}
    )


def _wishes(text: str) -> object:
    wishes = affinity_terms.read(text)
    assert affinity_terms.read(";".join(map(str, wishes))) == wishes
    return wishes


def _expression(text: str) -> object:
    try:
        expression = expressions.Expression(text)
        device = ClaimedDevice(attributes={"numa": DeviceAttribute(integer=1)})
        return expression.matches(expressions.input_of("x", device), values.Run())
    except (NotModelledError, EvaluationError) as error:
        return str(error)


def _workload(data: bytes) -> object:
    workload = msgspec.json.decode(data, type=kueue.Workload)
    pods = list(islice(kueue.pods_of(workload, {}), 100))
    checks = frozenset(("aligned",))
    return pods, workload.ready_since(checks), kueue.patch(workload, workload.pending(checks), "Retry", "why", 1e9)


def _configuration(kind: type[config.Configuration]) -> Callable[[bytes], object]:
    return lambda data: config.effective(config.parse(kind, data))


def _exporter_configuration(data: bytes) -> object:
    settings = config.parse(ExporterConfiguration, data)
    return config.effective(settings), bool(Overrides(settings.kubelet.overrides))


def _kubelet_configuration(data: bytes) -> object:
    parsed = kubeletconfig.with_defaults(kubeletconfig.parse(data), "v1.36.0")
    assert kubeletconfig.decode(kubeletconfig.encode(parsed)) == parsed
    return parsed.reserved({"memory": 1 << 40}), parsed.reserved_cpus


def _kubelet_files(data: bytes) -> object:
    """The data as the main file with a drop-in, and as a drop-in."""
    with tempfile.TemporaryDirectory() as directory:
        main, folder = Path(directory, "config.yaml"), Path(directory, "config.d")
        folder.mkdir()
        patch = Path(folder, "patch.conf")
        for of_main, of_patch in ((data, _KUBELET_YAML), (_KUBELET_YAML, data)):
            main.write_bytes(of_main)
            patch.write_bytes(of_patch)
            read = sources.load(str(main), sources.drop_ins(str(folder)))
        return read


def _state_files(data: bytes) -> object:
    """The data as each of the kubelet's state files, read for the report and as the kubelet would at its next start."""
    static = KubeletConfiguration(cpuManagerPolicy="static", memoryManagerPolicy="Static", reservedSystemCPUs="0")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        Path(root, "pods", "uid").mkdir(parents=True)
        for name in _STATE_FILES:
            Path(root, name).parent.mkdir(exist_ok=True)
            Path(root, name).write_bytes(data)
        files, start = NodeFiles(directory), StartCheck(root)
        refused = start.compare(static, _scanned(), Allocatable(cpus=frozenset({1})), 0.0)
        assert all(line and "\n" not in line and len(line) < 2000 for line in refused.values())
        return files.admitted_pods(), files.read(static), refused


@cache
def _tree() -> tuple[tempfile.TemporaryDirectory[str], Path, tuple[Path, ...]]:
    """Returns /sys and /proc of a machine, and their files."""
    directory = tempfile.TemporaryDirectory()
    node = partial(machines.Node, memory_bytes=machines.GIB, cores=1, hugepages={machines.PAGE_2M: 8})
    device = machines.Pci("0000:00:1f.0", None, "0x060100", "0x8086", "0x2918")
    root = Path(directory.name)
    nodes = node(0, socket=0), node(1, socket=1)
    machines.write_tree(machines.Machine(nodes=nodes, distances=((10, 21), (21, 10)), pci=(device,)), root)
    return directory, root, tuple(sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink()))


def _scanned() -> ScannedMachine:
    _, root, _ = _tree()
    return scan(str(root / "sys"), str(root / "proc"))


def _machine(data: bytes) -> object:
    """A machine; the first byte selects the file that has the rest as its content."""
    _, _, files = _tree()
    path = files[data[0] % len(files)] if data else files[0]
    before = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        scanned = _scanned()
        assert all("\n" not in problem and len(problem) < 2000 for problem in scanned.problems)
        return scanned
    finally:
        path.write_bytes(before)


def _kubeconfig(data: bytes) -> object:
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        access = kubeconfig.read(file.name)
        return None if access is None else (access.header(), access.token_file(), access.context())


def _report(data: bytes) -> object:
    topology = nrt.decode(data)
    assert nrt.decode_lazily(data).whole() == topology
    assert nrt.decode_identity(data)[0] == topology.metadata.name
    confirmation.refused_state_files({attribute.name: attribute.value for attribute in topology.attributes or ()})
    decoded = report.read(topology)
    assert all(line and "\n" not in line for line in decoded.problems)
    kubelet = report.kubelet_of(decoded, lambda _name: None)
    kubelet.admit(_POD)
    return decoded


def _pod(data: bytes) -> object:
    pod = pods.decode(data)
    return (
        pods.needs(pods.allocated(pod)),
        policy_annotations.demand(pod.metadata.annotations or {}),
        Records().decode(data),
        pods.with_blank_containers(data),
    )


def _numatopology(data: bytes) -> object:
    read = numatopology.decode(data)
    assert numatopology.same(numatopology.stamped(read, 1), read)
    return read


def _steering(text: str) -> object:
    request = steering_requests.decode_request(text)
    assert steering_requests.decode_request(steering_requests.encode(request)) == request
    return request


def _pod_list(data: bytes) -> object:
    return podresources.PodDecoder("socket").decode(data)


def _allocatable(data: bytes) -> object:
    return podresources.decode_allocatable(podresources._parse(pb.AllocatableResourcesResponse, data, "socket"))


_ASKED: pods.Quantities = {"cpu": "2", "memory": "1Gi", "gpu": 1, "hugepages-2Mi": "2Mi"}
_POD = pods.Pod(pods.Metadata("q", "default", "q"), pods.Spec((pods.Container("c", pods.Resources(limits=_ASKED)),)))
_OBJECT = (msgspec.DecodeError, UnicodeError, RecursionError, ParseError)


def _topology() -> bytes:
    """Returns an object of our exporter with everything in it."""
    settings = configuration()
    machine = Machine(
        numa=tuple(
            NumaNode(at, 4 * GI, tuple(Core(at, (2 * core + 4 * at,)) for core in range(2)), {2048: 8}, (10, 20))
            for at in range(2)
        ),
        devices=(DevicePlugin("gpu", (Device("g0", (0,)), Device("g1", (1,)))),),
    )
    kubelet = Kubelet(machine, settings)
    placement = Placement("app", None, False, 0b100, (MemoryBlock("memory", (0,), GI),), {"gpu": ("g0",)})
    kubelet.hold("p", {"cpu": 1000}, {"c": placement})
    return msgspec.json.encode(exported(machine, settings, kubelet))


_FOREIGN_TOPOLOGY = msgspec.json.encode(
    {
        "metadata": {"name": "n1", "resourceVersion": "7"},
        "topologyPolicies": ["SingleNUMANodePodLevel"],
        "attributes": [
            {"name": numaplacement.METADATA_ATTRIBUTE, "value": "npv0v001::ve=leb89::cc=3::nn=2::bn=0"},
            {"name": "topologyManagerPolicy", "value": "restricted"},
        ],
        "zones": [
            {
                "name": f"node-{number}",
                "type": "Node",
                "costs": [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 20}],
                "attributes": [{"name": numaplacement.VECTOR_ATTRIBUTE, "value": "!"}] if number else [],
                "resources": [
                    {"name": name, "capacity": "8", "allocatable": "7500m", "available": "4"}
                    for name in ("cpu", "memory", "hugepages-1Gi", "example.com/gpu")
                ],
            }
            for number in range(2)
        ],
    }
)
_POD_JSON = (
    b'{"metadata":{"name":"p","namespace":"d","uid":"u","annotations":{"topowise.io/numa-policy":"restricted",'
    b'"topowise.io/device-affinity":"x.y/z: pcie-root"}},"spec":{'
    b'"containers":[{"name":"c","resources":{"limits":{"cpu":"2","memory":1073741824,"x.y/z":"1e0"}}}],"initContainers":'
    b'[{"name":"i","restartPolicy":"Always","resources":{"requests":{"cpu":0.5}}}],"overhead":{"cpu":"10m"},"resources":'
    b'{"limits":{"cpu":"4"}},"priority":5},"status":{"phase":"Running","qosClass":"","containerStatuses":[{"name":"c",'
    b'"allocatedResources":{"cpu":"1"}}]}}'
)
_KUBELET_YAML = (
    b"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntopologyManagerPolicy: restricted\n"
    b"topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}\ncpuManagerPolicy: static\nmaxPods: 250\n"
    b"reservedSystemCPUs: 0-1,32\nsystemReserved: {cpu: '1', memory: 1Gi}\nkubeReserved: &kept {memory: '5e8'}\n"
    b"evictionHard: {memory.available: 5%, nodefs.available: 1Gi}\nfeatureGates: {A: true}\n"
    b"reservedMemory:\n- numaNode: 0\n  limits: {memory: 1Gi, hugepages-2Mi: 2Mi}\n"
)
_KUBECONFIG = (
    b"current-context: c\nclusters: [{name: k, cluster: {server: 'https://h:1', certificate-authority-data: aGk=}}]\n"
    b"users: [{name: u, user: {token: t, client-certificate-data: aGk=, client-key-data: aGk=}}]\n"
    b"contexts: [{name: c, context: {cluster: k, user: u}}]\n"
)
_CPU_STATE = b'{"policyName":"static","defaultCpuSet":"0-1,8","entries":{"uid":{"c":"2-3"}},"checksum":0}'
_STATE_FILES = (
    state_files.CPU_STATE,
    state_files.MEMORY_STATE,
    state_files.DEVICE_STATE,
    state_files.ALLOCATED_STATE,
)
_ALLOCATED_PODS = b'{"data":"{\\"entries\\":{\\"uid\\":{\\"c\\":{}}}}","checksum":1}'
_NO_OBJECTS = (b"null", b"[]", b"1", b'"x"', b"true", b"")
_STEERING = b'{"id":"a","numa":1,"containers":2,"seconds":1.5}'
_DEVICE_CHECKPOINT = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"bf52b2cd-b611-4e79-86b1-280b283185c3","ContainerName":"check",'
    b'"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["tegra"]},'
    b'"AllocResp":"Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh"}],'
    b'"RegisteredDevices":{"nvidia.com/gpu":["tegra"]}},"Checksum":3660592824}'
)
_MEMORY_STATE = (
    b'{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":9,"free":5}},'
    b'"cells":[0,1]}},"entries":{"uid":{"c":[{"numaAffinity":[0],"type":"memory","size":4}]}},"checksum":0}'
)
_NUMATOPOLOGY = (
    b'{"metadata":{"name":"n"},"spec":{"policies":{"CPUManagerPolicy":"static"},"resReserved":{"cpu":"1"},"numares":'
    b'{"cpu":{"allocatable":"0-3","capacity":4}},"cpuDetail":{"0":{},"1":{"numa":1}},"podAllocations":[{"uid":"u",'
    b'"containerAllocations":[{"name":"c","allocations":{"cpu":"0-1","memory":"1Gi"}}]}]}}'
)
_CEL = b'device.attributes["x"].?numa.orValue(0) == 1 && quantity("1Gi").isLessThan(quantity("2G"))'
_CLASS = b'{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}'
_WORKLOAD = b"""{"metadata": {"name": "w", "namespace": "n", "uid": "u"}, "spec": {"podSets": [{"name": "main",
  "count": 2, "template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}}]},
  "status": {
  "conditions": [{"type": "QuotaReserved", "status": "True"}], "requeueState": {"count": 3},
  "admission": {"podSetAssignments": [{"name": "main", "flavors": {"cpu": "metal"}, "count": 1}]}, "admissionChecks": [
  {"name": "aligned", "state": "Pending", "retryCount": 2, "lastTransitionTime": "2026-11-26T19:00:00Z"}]}}"""
_CLAIM = b"""{"metadata": {"name": "c", "namespace": "n"}, "spec": {"devices": {"requests": [
  {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
  {"name": "b", "firstAvailable": [{"name": "s", "deviceClassName": "gpu", "allocationMode": "All"}]}],
  "constraints": [{"requests": ["a"], "matchAttribute": "x/numa"}]}},
  "status": {"allocation": {"devices": {"results": [{"request": "a", "driver": "x", "pool": "p", "device": "d"}]}}}}"""
_SLICE = (
    b'{"metadata":{"name":"s","namespace":"","generation":2},"spec":{"driver":"gpu.example.com","nodeName":"n1","pool":'
    b'{"name":"n1","generation":1,"resourceSliceCount":1},"devices":[{"name":"d0","attributes":{"numaNode":{"int":0},'
    b'"resource.kubernetes.io/pciBusID":{"string":"0000:3b:00.0"},"a":{"bool":true},"v":{"version":"1.0.0"}}}]}}'
)
_BUDGET = (
    b'{"metadata":{"name":"b","namespace":"d"},"spec":{"selector":{"matchExpressions":[{"key":"a","operator":"In",'
    b'"values":["b"]}],"matchLabels":{"c":"d"}}},"status":{"disruptionsAllowed":1,"disruptedPods":{"p":"x"}}}'
)
_CONFIGZ = (
    b'{"kubeletconfig":{"topologyManagerPolicy":"none","maxPods":110,"evictionHard":{"memory.available":"100Mi"},'
    b'"reservedMemory":[{"numaNode":0,"limits":{"memory":"1Gi"}}],"featureGates":{"A":true}}}'
)
_MANIFEST = (
    b"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: n, namespace: d}\nspec:\n  jobTemplate:\n    spec:\n"
    b"      template:\n        metadata: {labels: {a: b}}\n        spec:\n          containers:\n"
    b"          - {name: c, resources: {limits: &l {cpu: 2, memory: 1Gi}, requests: *l}}\n"
)


def _listed() -> bytes:
    memory = pb.ContainerMemory(memory_type="memory", size=GI, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=1)]))
    gpu = pb.ContainerDevices(resource_name="gpu", device_ids=["a", "b"], topology=memory.topology)
    container = pb.ContainerResources(name="c", cpu_ids=[1, 2, 300], memory=[memory], devices=[gpu])
    pod = pb.PodResources(name="p", namespace="d", containers=[container], cpu_ids=[5], memory=[memory])
    return pb.ListPodResourcesResponse(pod_resources=[pod, pod]).SerializeToString()


def _given() -> bytes:
    topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=0), pb.NUMANode(ID=-1)])
    devices_ = [pb.ContainerDevices(resource_name="gpu", device_ids=["a"], topology=topology)]
    memory = [pb.ContainerMemory(memory_type="hugepages-2Mi", size=5, topology=topology)]
    return pb.AllocatableResourcesResponse(cpu_ids=range(64), devices=devices_, memory=memory).SerializeToString()


def _pods_event() -> bytes:
    return pods_pb2.WatchPodsEvent(type=pods_pb2.INITIAL_SYNC_COMPLETE).SerializeToString()


@cache
def parsers() -> tuple[Parser, ...]:
    """Returns all parsers by name."""
    topology = _topology()
    named = {
        attribute["name"]: attribute["value"].encode() for attribute in msgspec.json.decode(topology)["attributes"]
    }
    head = b"apiVersion: topowise.io/v1alpha1\nkind: "
    return (
        Parser("cpulist", _text(_cpus), (b"0-3,8,10-11\n\0", b"(null)", b"5")),
        Parser("cpumap", _text(cpuset.parse_mask), (b"00000000,000000ff", b"f")),
        Parser("quantity", _text(_quantity), (b"500m", b"2Gi", b"1e3", b"-0.5", b"1.5E")),
        Parser("amount", _text(lambda text: pods.amount_of("cpu", text)), (b"500m", b"4Ti")),
        Parser("threshold", _text(_threshold), (b"5%", b"100Mi", b"1e1%")),
        Parser("fingerprint", _text(fingerprint.check), (b"pfp0v00139cc1b867c25bda5",)),
        Parser("numaplacement", _text(_placement), (b"npv0v001::ve=leb89::cc=9::nn=2::bn=0 !#",)),
        Parser("policy", _text(_named), (b"restricted pod",)),
        Parser("annotations", _text(_demand), (b"restricted none",)),
        Parser(
            "device affinity",
            _text(_wishes),
            (b"require nvidia.com/gpu,rdma/hca: pcie-switch; prefer nvidia.com/gpu: pcie-root", b"a/b:pcie-root-port;"),
        ),
        Parser("cores", _text(cores.read), (named[attributes.CORES], b"0:0:0-15/64-79;1::16/80")),
        Parser(
            "devices", _text(devices.read), (named[attributes.DEVICES], b'{"a/b":{"0":["x"],"0-1":["y"],"":["z"]}}')
        ),
        Parser(
            "places",
            _text(_places),
            (b'[["pci0000:17/0000:17:00.0",0,["0000:18:00.1"],{"GPU-5e":"0000:18:00.0"}],["pci10000:00",null,[],{}]]',),
        ),
        Parser("PCI link", _text(_link), (b"../../../devices/pci0000:40/0000:40:00.0/0000:41:00.0",)),
        Parser("holdings", _text(holdings.read), (named[attributes.HOLDINGS],)),
        Parser("kubelet attribute", _text(kubeletconfig.decode), (named[attributes.KUBELET_CONFIGURATION],)),
        Parser("kubelet file", _kubelet_configuration, (_KUBELET_YAML,)),
        Parser("configz", lambda data: configz.decode(data, source="configz"), (_CONFIGZ,)),
        Parser("kubelet files", _kubelet_files, (_KUBELET_YAML,)),
        Parser(
            "exporter configuration",
            _exporter_configuration,
            (head + b"ExporterConfiguration\nkubelet: {overrides: {topologyManagerPolicy: none}}\n",),
        ),
        Parser(
            "scheduler configuration",
            _configuration(SchedulerConfiguration),
            (
                head
                + b"SchedulerConfiguration\nscaleUp: {perHour: 4}\n"
                + b"scoring: {resources: [{name: cpu, weight: 2}]}\n",
            ),
        ),
        Parser("kubeconfig", _kubeconfig, (_KUBECONFIG,)),
        Parser("cpu state", lambda data: state_files.parse_cpu_state(data, "file"), (_CPU_STATE,)),
        Parser("memory state", lambda data: state_files.parse_memory_state(data, "file"), (_MEMORY_STATE,)),
        Parser("device checkpoint", lambda data: device_checkpoint.parse(data, "file"), (_DEVICE_CHECKPOINT,)),
        Parser("allocated pods", lambda data: state_files.parse_allocated_pods(data, "file"), (_ALLOCATED_PODS,)),
        Parser(
            "state files",
            _state_files,
            (_CPU_STATE, _MEMORY_STATE, _DEVICE_CHECKPOINT, _ALLOCATED_PODS, *_NO_OBJECTS),
        ),
        Parser("machine", _machine, tuple(bytes((at,)) + path.read_bytes() for at, path in enumerate(_tree()[2]))),
        Parser("steering request", _text(_steering), (_STEERING,)),
        Parser("Pods API event", pods_api.is_change, (_pods_event(),), (DecodeError,)),
        Parser("podresources list", _pod_list, (_listed(),)),
        Parser("podresources allocatable", _allocatable, (_given(),)),
        Parser("report", _report, (topology, _FOREIGN_TOPOLOGY), _OBJECT),
        Parser("pod", _pod, (_POD_JSON,), _OBJECT),
        Parser("resource slice", slices.decode, (_SLICE,), _OBJECT),
        Parser("slice of claims", decode_slice, (_SLICE,), _OBJECT),
        Parser("resource claim", decode_claim, (_CLAIM,), _OBJECT),
        Parser("device class", decode_class, (_CLASS,), _OBJECT),
        Parser("CEL expression", _text(_expression), (_CEL, b"[1, 2].all(a, a > 0) || device.driver == 'x'")),
        Parser("semantic version", _text(semver.parse), (b"1.2.3-rc.1+build", b"1.0.0")),
        Parser("numatopology", _numatopology, (_NUMATOPOLOGY,), _OBJECT),
        Parser("disruption budget", decode_budget, (_BUDGET,), _OBJECT),
        Parser("Kueue Workload", _workload, (_WORKLOAD,), _OBJECT),
        Parser("timestamp", _text(timestamps.seconds), (b"2026-11-26T19:00:00Z", b"0001-01-01T00:00:00")),
        Parser("documents", documents.load_all, (_MANIFEST + b"---\n" + _KUBELET_YAML, b"[1, {a: 2}]", _POD_JSON)),
    )

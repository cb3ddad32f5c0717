"""What the soak takes for a cause has happened."""

from __future__ import annotations

import msgspec

from scheduling import kubelet, machine, pod
from soak import causes
from topowise import pods
from topowise_scheduler.kubelet import Device, DevicePlugin, Kubelet, KubeletConfiguration
from topowise_scheduler.kubelet.masks import mask_of, members

GPUS = "nvidia.com/gpu"

HISTORY = [
    (1.0, "default/a assigned"),
    (2.0, "default/a admitted: c numa=(0,)"),
    (3.0, "default/a is Running in the API"),
    (9.0, "default/a ended"),
    (9.5, "default/b assigned"),
]


def test_a_pod_is_unseen_that_ended_between_the_last_report_and_the_start_of_the_service() -> None:
    assert causes.ended_unseen("default/a", HISTORY, looked=8.0, began=10.0)
    # The report was made afterwards; the service heard of it; it still runs.
    assert not causes.ended_unseen("default/a", HISTORY, looked=9.1, began=10.0)
    assert not causes.ended_unseen("default/a", HISTORY, looked=8.0, began=8.5)
    assert not causes.ended_unseen("default/b", HISTORY, looked=8.0, began=10.0)
    assert not causes.ended_unseen("a", HISTORY, looked=8.0, began=10.0)


def test_a_cpu_that_two_have_or_that_is_free_as_well_was_given_twice() -> None:
    node = kubelet()
    assert node.cpu is not None
    node.cpu.hold("a", "c", 0b0110)
    assert not causes.gives_twice(node)
    node.cpu.hold("b", "c", 0b0100)
    assert causes.gives_twice(node)
    node.cpu.release("b")
    assert causes.gives_twice(node)
    node.cpu.release("a")
    assert not causes.gives_twice(node)


def test_a_pod_is_tried_beside_later_pods_which_are_not_counted_twice() -> None:
    before = kubelet()
    first, second, third = (decoded(name) for name in ("first", "second", "wanted"))
    assert before.admit(first).admitted
    assert causes.takes_beside(before, [first], third)
    assert not causes.takes_beside(before, [first, second], third)
    assert list(before.active) == ["uid-first"]


def test_a_choice_of_a_plugin_counts_only_where_another_would_have_let_the_pod_in() -> None:
    # The first container gets the device near both nodes, if its plugin prefers it; the second needs two of a node.
    gpus = DevicePlugin(GPUS, (Device("a", (0,)), Device("b", (1,)), Device("c", (0, 1))), preferred=("c",))
    config = {"topologyManagerPolicy": "restricted", "cpuManagerPolicy": "none", "memoryManagerPolicy": "None"}
    node = Kubelet(msgspec.structs.replace(machine(), devices=(gpus,)), msgspec.convert(config, KubeletConfiguration))
    document = pod("wanted")
    document["spec"]["containers"] = [_asking("one", 1), _asking("two", 2)]
    both = pods.decode(msgspec.json.encode(document))
    assert not node.fork().admit(both).admitted
    assert causes.of_devices(node, node, [], both).startswith("a device plugin has chosen")
    document = pod("alone")
    document["spec"]["containers"] = [_asking("one", 1)]
    alone = pods.decode(msgspec.json.encode(document))
    assert causes.of_devices(node, node, [alone], both) == ""
    sick = node.fork()
    sick.report_devices(GPUS, [Device("a", (0,))])
    document["spec"]["containers"] = [_asking("one", 2)]
    two = pods.decode(msgspec.json.encode(document))
    assert causes.of_devices(node, sick, [], two).startswith("devices that are not healthy")
    assert causes.of_devices(node, node, [], two) == ""


def _asking(name: str, gpus: int) -> dict[str, object]:
    return {"name": name, "resources": {"requests": {GPUS: str(gpus)}, "limits": {GPUS: str(gpus)}}}


def test_restarted_init_containers_release_memory_once_started() -> None:
    node = kubelet()
    document = pod("before", "1", "1Gi")
    amounts = {"cpu": "1", "memory": "6Gi"}
    document["spec"]["initContainers"] = [{"name": "i", "resources": {"requests": amounts, "limits": amounts}}]
    assert node.admit(pods.decode(msgspec.json.encode(document))).admitted
    new_pods = [pods.decode(msgspec.json.encode(pod(name, "1", "10Gi"))) for name in ("one", "two")]
    assert node.admit(new_pods[0]).admitted
    assert causes.takes_once_started(node, ["uid-before"], new_pods[1])
    assert not causes.takes_once_started(node, [], new_pods[1])


def decoded(name: str) -> pods.Pod:
    return pods.decode(msgspec.json.encode(pod(name, "3")))


def test_a_pod_that_was_not_admitted_again_has_ended_unseen_too() -> None:
    history = [*HISTORY[:3], (9.0, "default/a not admitted again: SMTAlignmentError")]
    assert causes.ended_unseen("default/a", history, looked=8.0, began=10.0)
    assert not causes.ended_unseen("default/a", history, looked=9.1, began=10.0)


def test_it_is_drawn_if_other_devices_would_have_made_the_difference() -> None:
    """Three GPUs near node 0, two near node 1 and a GPU near both, which the first container gets or not."""
    near = ((0,), (0,), (0,), (1,), (1,), (0, 1))
    plugin = DevicePlugin(GPUS, tuple(Device(f"gpu{at}", zones) for at, zones in enumerate(near)))
    config = KubeletConfiguration(topologyManagerPolicy="restricted", cpuManagerPolicy="none")
    node = Kubelet(msgspec.structs.replace(machine(), devices=(plugin,)), config)
    document = pod("wanted")
    document["spec"]["containers"] = [_asking("one", 2), _asking("two", 3)]
    both, alone = (
        pods.decode(msgspec.json.encode(manifest))
        for manifest in (document, {**document, "spec": {"containers": [_asking("one", 2)]}})
    )
    assert not causes.is_drawn(node, [], both)
    node.devices.chooser = lambda choice: mask_of(list(members(choice.among))[-choice.number :])
    assert causes.is_drawn(node, [], both)
    assert not causes.is_drawn(node, [], alone)

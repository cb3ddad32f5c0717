"""Nodes without emulation: the stand-in for the container runtime, and the machine that a node shows."""

from __future__ import annotations

from typing import Any

import pytest

from lab import machine
from lab.native.nodes import MEMORY_MIB, described
from lab.native.runtime import (
    CREATED,
    EXITED,
    KINDS,
    NO_LOGS,
    REFUSED,
    RUNNING,
    SANDBOX_NOTREADY,
    RefusedError,
    Runtime,
)
from sandbox.machines import layout


def _sandbox(runtime: Runtime, name: str, handler: str = "") -> str:
    request = KINDS["RunPodSandboxRequest"](runtime_handler=handler)
    request.config.metadata.name = name
    request.config.labels["pod"] = name
    answer: str = runtime.run_pod_sandbox(request).pod_sandbox_id
    return answer


def _container(runtime: Runtime, sandbox: str, *command: str) -> str:
    request = KINDS["CreateContainerRequest"](pod_sandbox_id=sandbox)
    request.config.command.extend(command)
    container: str = runtime.create_container(request).container_id
    runtime.start_container(KINDS["StartContainerRequest"](container_id=container))
    return container


def _state(runtime: Runtime, container: str) -> tuple[int, int]:
    status = runtime.container_status(KINDS["ContainerStatusRequest"](container_id=container)).status
    return status.state, status.exit_code


def test_containers_run_until_their_sandbox_stops() -> None:
    runtime = Runtime()
    sandbox, neighbour = _sandbox(runtime, "a"), _sandbox(runtime, "b")
    sleeping, ended = _container(runtime, sandbox, "sleep", "infinity"), _container(runtime, sandbox, "true")
    kept = _container(runtime, neighbour, "sleep", "infinity")
    assert [_state(runtime, each) for each in (sleeping, ended, kept)] == [(RUNNING, 0), (EXITED, 0), (RUNNING, 0)]
    runtime.stop_pod_sandbox(KINDS["StopPodSandboxRequest"](pod_sandbox_id=sandbox))
    assert [_state(runtime, each) for each in (sleeping, ended, kept)] == [(EXITED, 137), (EXITED, 0), (RUNNING, 0)]
    runtime.remove_pod_sandbox(KINDS["RemovePodSandboxRequest"](pod_sandbox_id=sandbox))
    listed = runtime.list_containers(KINDS["ListContainersRequest"]()).containers
    assert [(item.id, item.pod_sandbox_id) for item in listed] == [(kept, neighbour)]
    with pytest.raises(KeyError):
        _state(runtime, sleeping)


def test_a_created_container_does_not_run_yet() -> None:
    runtime = Runtime()
    container = runtime.create_container(KINDS["CreateContainerRequest"](pod_sandbox_id="s")).container_id
    assert _state(runtime, container) == (CREATED, 0)


@pytest.mark.parametrize(
    ("folder", "name", "expected"),
    [("/var/log/pods/a", "main/0.log", "/var/log/pods/a/main/0.log"), ("", "main/0.log", f"{NO_LOGS}/main/0.log")],
)
def test_a_container_has_a_log_path_of_its_own(folder: str, name: str, expected: str) -> None:
    """The kubelet deletes all files whose names begin with the path. An empty path deleted files of the host."""
    runtime = Runtime()
    request = KINDS["CreateContainerRequest"](pod_sandbox_id="s")
    request.sandbox_config.log_directory, request.config.log_path = folder, name
    container = runtime.create_container(request).container_id
    assert runtime.container_status(KINDS["ContainerStatusRequest"](container_id=container)).status.log_path == expected
    bare = runtime.create_container(KINDS["CreateContainerRequest"](pod_sandbox_id="s")).container_id
    path = runtime.container_status(KINDS["ContainerStatusRequest"](container_id=bare)).status.log_path
    assert path == f"{NO_LOGS}/{bare}"


def test_lists_are_filtered_by_state_and_labels() -> None:
    runtime = Runtime()
    first, second = _sandbox(runtime, "a"), _sandbox(runtime, "b")
    runtime.stop_pod_sandbox(KINDS["StopPodSandboxRequest"](pod_sandbox_id=first))

    def listed(**fields: Any) -> list[str]:
        request = KINDS["ListPodSandboxRequest"]()
        if "state" in fields:
            request.filter.state.state = fields["state"]
        request.filter.label_selector.update(fields.get("labels", {}))
        return [item.id for item in runtime.list_pod_sandbox(request).items]

    assert listed() == [first, second]
    assert listed(state=SANDBOX_NOTREADY) == [first]
    assert listed(state=0) == [second]
    assert listed(labels={"pod": "b"}) == [second]


def test_a_pod_of_the_handler_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RefusedError, match=REFUSED):
        _sandbox(Runtime(), "a", REFUSED)


@pytest.mark.parametrize("name", ["dual", "quad", "octo", "memory"])
def test_a_node_shows_the_cpus_and_devices_of_its_machine_file(name: str) -> None:
    of_file = machine.read(name)
    shown = described(of_file)
    assert len(layout(shown)) == of_file.cpus
    assert [node.socket for node in shown.nodes] == [node.socket or 0 for node in of_file.nodes]
    assert sum(node.memory_bytes for node in shown.nodes) <= MEMORY_MIB << 20
    functions = [function.node for function in shown.pci if function.class_code == "0x020000"]
    assert functions == [number for number, node in enumerate(of_file.nodes) for kind in node.pci if kind == "network"]

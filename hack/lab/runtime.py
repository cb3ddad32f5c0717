"""A container runtime (CRI v1) that runs nothing: runtime.py SOCKET.

A container is running as soon as the kubelet starts it, and a container with the command "true" has ended at once. The
handler lab-never-starts does not exist, and a container with a device that no file of CDI describes is refused. State
is in memory: with this process all containers end, as at a reboot.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc

from lab import messages

PACKAGE: Final = "runtime.v1"
REFUSED: Final = "lab-never-starts"
# As k8s.io/cri-api/pkg/apis/runtime/v1.
MESSAGES: Final[dict[str, dict[int, str]]] = {
    "VersionRequest": {},
    "VersionResponse": {
        1: "version string",
        2: "runtime_name string",
        3: "runtime_version string",
        4: "runtime_api_version string",
    },
    "StatusRequest": {},
    "StatusResponse": {1: "status RuntimeStatus", 3: "runtime_handlers *RuntimeHandler"},
    "RuntimeStatus": {1: "conditions *RuntimeCondition"},
    "RuntimeCondition": {1: "type string", 2: "status bool"},
    "RuntimeHandler": {1: "name string"},
    "RuntimeConfigRequest": {},
    "RuntimeConfigResponse": {1: "linux LinuxRuntimeConfiguration"},
    "LinuxRuntimeConfiguration": {1: "cgroup_driver int32"},
    "UpdateRuntimeConfigRequest": {},
    "UpdateRuntimeConfigResponse": {},
    "PodSandboxMetadata": {1: "name string", 2: "uid string", 3: "namespace string", 4: "attempt uint32"},
    "PodSandboxConfig": {
        1: "metadata PodSandboxMetadata",
        3: "log_directory string",
        6: "labels %",
        7: "annotations %",
    },
    "RunPodSandboxRequest": {1: "config PodSandboxConfig", 2: "runtime_handler string"},
    "RunPodSandboxResponse": {1: "pod_sandbox_id string"},
    "StopPodSandboxRequest": {1: "pod_sandbox_id string"},
    "StopPodSandboxResponse": {},
    "RemovePodSandboxRequest": {1: "pod_sandbox_id string"},
    "RemovePodSandboxResponse": {},
    "PodSandboxStatusRequest": {1: "pod_sandbox_id string"},
    "PodSandboxStatusResponse": {1: "status PodSandboxStatus"},
    "PodSandboxStatus": {
        1: "id string",
        2: "metadata PodSandboxMetadata",
        3: "state int32",
        4: "created_at int64",
        5: "network PodSandboxNetworkStatus",
        6: "linux LinuxPodSandboxStatus",
        7: "labels %",
        8: "annotations %",
        9: "runtime_handler string",
    },
    "PodSandboxNetworkStatus": {1: "ip string"},
    "LinuxPodSandboxStatus": {1: "namespaces Namespace"},
    "Namespace": {2: "options NamespaceOption"},
    "NamespaceOption": {1: "network int32"},
    "PodSandboxStateValue": {1: "state int32"},
    "PodSandboxFilter": {1: "id string", 2: "state PodSandboxStateValue", 3: "label_selector %"},
    "ListPodSandboxRequest": {1: "filter PodSandboxFilter"},
    "ListPodSandboxResponse": {1: "items *PodSandbox"},
    "PodSandbox": {
        1: "id string",
        2: "metadata PodSandboxMetadata",
        3: "state int32",
        4: "created_at int64",
        5: "labels %",
        6: "annotations %",
        7: "runtime_handler string",
    },
    "ContainerMetadata": {1: "name string", 2: "attempt uint32"},
    "ImageSpec": {1: "image string"},
    "ContainerConfig": {
        1: "metadata ContainerMetadata",
        2: "image ImageSpec",
        3: "command *string",
        9: "labels %",
        10: "annotations %",
        11: "log_path string",
        17: "CDI_devices *CDIDevice",
    },
    "CDIDevice": {1: "name string"},
    "CreateContainerRequest": {
        1: "pod_sandbox_id string",
        2: "config ContainerConfig",
        3: "sandbox_config PodSandboxConfig",
    },
    "CreateContainerResponse": {1: "container_id string"},
    "StartContainerRequest": {1: "container_id string"},
    "StartContainerResponse": {},
    "StopContainerRequest": {1: "container_id string"},
    "StopContainerResponse": {},
    "RemoveContainerRequest": {1: "container_id string"},
    "RemoveContainerResponse": {},
    "ContainerStateValue": {1: "state int32"},
    "ContainerFilter": {
        1: "id string",
        2: "state ContainerStateValue",
        3: "pod_sandbox_id string",
        4: "label_selector %",
    },
    "ListContainersRequest": {1: "filter ContainerFilter"},
    "ListContainersResponse": {1: "containers *Container"},
    "Container": {
        1: "id string",
        2: "pod_sandbox_id string",
        3: "metadata ContainerMetadata",
        4: "image ImageSpec",
        5: "image_ref string",
        6: "state int32",
        7: "created_at int64",
        8: "labels %",
        9: "annotations %",
    },
    "ContainerStatusRequest": {1: "container_id string"},
    "ContainerStatusResponse": {1: "status ContainerStatus"},
    "ContainerStatus": {
        1: "id string",
        2: "metadata ContainerMetadata",
        3: "state int32",
        4: "created_at int64",
        5: "started_at int64",
        6: "finished_at int64",
        7: "exit_code int32",
        8: "image ImageSpec",
        9: "image_ref string",
        10: "reason string",
        12: "labels %",
        13: "annotations %",
        15: "log_path string",
    },
    "UpdateContainerResourcesRequest": {},
    "UpdateContainerResourcesResponse": {},
    "UpdatePodSandboxResourcesRequest": {},
    "UpdatePodSandboxResourcesResponse": {},
    "ListContainerStatsRequest": {},
    "ListContainerStatsResponse": {},
    "ListPodSandboxStatsRequest": {},
    "ListPodSandboxStatsResponse": {},
    "ListImagesRequest": {},
    "ListImagesResponse": {1: "images *Image"},
    "Image": {1: "id string", 2: "repo_tags *string", 4: "size uint64", 7: "spec ImageSpec"},
    "ImageStatusRequest": {1: "image ImageSpec"},
    "ImageStatusResponse": {1: "image Image"},
    "ImageFsInfoRequest": {},
    "ImageFsInfoResponse": {1: "image_filesystems *FilesystemUsage", 2: "container_filesystems *FilesystemUsage"},
    "FilesystemUsage": {
        1: "timestamp int64",
        2: "fs_id FilesystemIdentifier",
        3: "used_bytes UInt64Value",
        4: "inodes_used UInt64Value",
    },
    "FilesystemIdentifier": {1: "mountpoint string"},
    "UInt64Value": {1: "value uint64"},
}
# Enumerations of the API.
SANDBOX_READY, SANDBOX_NOTREADY = 0, 1
CREATED, RUNNING, EXITED = 0, 1, 2
CGROUPFS: Final = 1
NODE_NETWORK: Final = 2
_IMAGE: Final = "sha256:lab"
_KILLED: Final = 137
# The kubelet deletes all files whose names begin with the path of a removed container's log (logManager.Clean): with an
# empty path, those of its working directory.
NO_LOGS: Final = "/nonexistent"


KINDS: Final = messages.classes(PACKAGE, MESSAGES)


class RefusedError(Exception):
    """The runtime does not run the sandbox or the container."""


class Runtime:
    """Sandboxes and containers by id. A method for each call, by its name; KeyError is an unknown id."""

    def __init__(self) -> None:
        self._ids = (f"{time.time_ns():x}{number:08x}".ljust(64, "0") for number in itertools.count())
        self._sandboxes: dict[str, Any] = {}
        self._containers: dict[str, Any] = {}
        self._sandbox_of: dict[str, str] = {}
        self._commands: dict[str, list[str]] = {}

    def version(self, request: Any) -> Any:
        return KINDS["VersionResponse"](
            version="0.1.0", runtime_name="lab-stand-in", runtime_version="1", runtime_api_version="v1"
        )

    def status(self, request: Any) -> Any:
        answer = KINDS["StatusResponse"](runtime_handlers=[KINDS["RuntimeHandler"]()])
        for condition in ("RuntimeReady", "NetworkReady"):
            answer.status.conditions.add(type=condition, status=True)
        return answer

    def runtime_config(self, request: Any) -> Any:
        return KINDS["RuntimeConfigResponse"](linux=KINDS["LinuxRuntimeConfiguration"](cgroup_driver=CGROUPFS))

    def run_pod_sandbox(self, request: Any) -> Any:
        if request.runtime_handler == REFUSED:
            raise RefusedError(f'no runtime for "{REFUSED}" is configured')
        sandbox = next(self._ids)
        self._sandboxes[sandbox] = KINDS["PodSandbox"](
            id=sandbox,
            metadata=request.config.metadata,
            created_at=time.time_ns(),
            labels=request.config.labels,
            annotations=request.config.annotations,
            runtime_handler=request.runtime_handler,
        )
        return KINDS["RunPodSandboxResponse"](pod_sandbox_id=sandbox)

    def stop_pod_sandbox(self, request: Any) -> Any:
        if (sandbox := self._sandboxes.get(request.pod_sandbox_id)) is not None:
            sandbox.state = SANDBOX_NOTREADY
            for container in self._of(request.pod_sandbox_id):
                self._end(container, _KILLED)
        return KINDS["StopPodSandboxResponse"]()

    def remove_pod_sandbox(self, request: Any) -> Any:
        for container in self._of(request.pod_sandbox_id):
            self._forget(container)
        self._sandboxes.pop(request.pod_sandbox_id, None)
        return KINDS["RemovePodSandboxResponse"]()

    def pod_sandbox_status(self, request: Any) -> Any:
        sandbox = self._sandboxes[request.pod_sandbox_id]
        status = KINDS["PodSandboxStatus"](**_shared(sandbox, "PodSandboxStatus"))
        status.network.ip = "127.0.0.1"
        status.linux.namespaces.options.network = NODE_NETWORK
        return KINDS["PodSandboxStatusResponse"](status=status)

    def list_pod_sandbox(self, request: Any) -> Any:
        chosen = request.filter
        items = [item for item in self._sandboxes.values() if _matches(item, chosen)]
        return KINDS["ListPodSandboxResponse"](items=items)

    def create_container(self, request: Any) -> Any:
        container, config = next(self._ids), request.config
        if missing := {device.name for device in config.CDI_devices} - messages.described():
            raise RefusedError(f"unresolvable CDI devices {', '.join(sorted(missing))}")
        self._containers[container] = KINDS["ContainerStatus"](
            id=container,
            metadata=config.metadata,
            created_at=time.time_ns(),
            image=config.image,
            image_ref=_IMAGE,
            labels=config.labels,
            annotations=config.annotations,
            log_path=f"{request.sandbox_config.log_directory or NO_LOGS}/{config.log_path or container}",
        )
        self._sandbox_of[container], self._commands[container] = request.pod_sandbox_id, list(config.command)
        return KINDS["CreateContainerResponse"](container_id=container)

    def start_container(self, request: Any) -> Any:
        container = self._containers[request.container_id]
        container.state, container.started_at = RUNNING, time.time_ns()
        if self._commands[request.container_id] == ["true"]:
            self._end(request.container_id, 0)
        return KINDS["StartContainerResponse"]()

    def stop_container(self, request: Any) -> Any:
        if request.container_id in self._containers:
            self._end(request.container_id, _KILLED)
        return KINDS["StopContainerResponse"]()

    def remove_container(self, request: Any) -> Any:
        self._forget(request.container_id)
        return KINDS["RemoveContainerResponse"]()

    def list_containers(self, request: Any) -> Any:
        chosen = request.filter
        items = [
            KINDS["Container"](pod_sandbox_id=self._sandbox_of[container], **_shared(status, "Container"))
            for container, status in self._containers.items()
            if chosen.pod_sandbox_id in ("", self._sandbox_of[container]) and _matches(status, chosen)
        ]
        return KINDS["ListContainersResponse"](containers=items)

    def container_status(self, request: Any) -> Any:
        return KINDS["ContainerStatusResponse"](status=self._containers[request.container_id])

    def list_images(self, request: Any) -> Any:
        return KINDS["ListImagesResponse"]()

    def image_status(self, request: Any) -> Any:
        """Each image exists."""
        image = KINDS["Image"](id=_IMAGE, repo_tags=[request.image.image], size=1, spec=request.image)
        return KINDS["ImageStatusResponse"](image=image)

    def image_fs_info(self, request: Any) -> Any:
        answer = KINDS["ImageFsInfoResponse"]()
        for usages in (answer.image_filesystems, answer.container_filesystems):
            usage = usages.add(timestamp=time.time_ns())
            usage.fs_id.mountpoint = "/var/lib/kubelet"
            usage.used_bytes.value = usage.inodes_used.value = 1
        return answer

    def _of(self, sandbox: str) -> list[str]:
        return [container for container in self._containers if self._sandbox_of[container] == sandbox]

    def _forget(self, container: str) -> None:
        for by_id in (self._containers, self._sandbox_of, self._commands):
            by_id.pop(container, None)

    def _end(self, container: str, code: int) -> None:
        status = self._containers[container]
        if status.state != EXITED:
            status.state, status.finished_at, status.exit_code = EXITED, time.time_ns(), code
            status.reason = "Error" if code else "Completed"


def _shared(message: Any, name: str) -> dict[str, Any]:
    """Returns the fields of a message that the other kind of message has too."""
    names = {spelt.split()[0] for spelt in MESSAGES[name].values()}
    return {field.name: value for field, value in message.ListFields() if field.name in names}


def _matches(item: Any, chosen: Any) -> bool:
    labels: Mapping[str, str] = chosen.label_selector
    return (
        chosen.id in ("", item.id)
        and (not chosen.HasField("state") or chosen.state.state == item.state)
        and all(item.labels.get(key) == value for key, value in labels.items())
    )


IMAGE_CALLS: Final = ("ListImages", "ImageStatus", "ImageFsInfo")
RUNTIME_CALLS: Final = tuple(
    name.removesuffix("Request")
    for name in MESSAGES
    if name.endswith("Request") and name.removesuffix("Request") not in IMAGE_CALLS
)


def _handlers(runtime: Runtime, calls: Iterable[str]) -> dict[str, Any]:
    # The kubelet calls at the same time.
    lock = threading.Lock()
    return {call: _handler(call, getattr(runtime, _snake(call), None), lock) for call in calls}


def _handler(call: str, act: Callable[[Any], Any] | None, lock: threading.Lock) -> Any:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            with lock:
                return KINDS[f"{call}Response"]() if act is None else act(request)
        except KeyError as exc:
            context.abort(grpc.StatusCode.NOT_FOUND, f"not found: {exc}")
        except RefusedError as exc:
            context.abort(grpc.StatusCode.UNKNOWN, str(exc))

    return grpc.unary_unary_rpc_method_handler(
        answer, KINDS[f"{call}Request"].FromString, lambda reply: reply.SerializeToString()
    )


def _snake(call: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in call).lstrip("_")


def serve(path: str) -> grpc.Server:
    """Serves the runtime at a socket."""
    server, runtime = grpc.server(ThreadPoolExecutor(16)), Runtime()
    for service, calls in (("RuntimeService", RUNTIME_CALLS), ("ImageService", IMAGE_CALLS)):
        handlers = _handlers(runtime, calls)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers),))
    server.add_insecure_port(f"unix://{path}")
    server.start()
    return server


if __name__ == "__main__":
    serve(sys.argv[1]).wait_for_termination()

"""In a guest: what its kernel and its kubelet say, as they say it. A container of hack/lab's own DaemonSet.

GET / has the kubelet's state files with the time of their last change, and podresources; /machine has /sys, verbatim;
/relay?url= passes on what a pod of the guest serves. Nothing is interpreted here: the comparison is to be with the
words of kernel and kubelet, not with what some code of ours makes of them.
"""

from __future__ import annotations

import http.server
import json
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

sys.path.insert(1, "/opt/topowise/lib")
import grpc
from google.protobuf.json_format import MessageToDict

from topowise.wire import podresources_pb2 as pb

KUBELET: Final = Path("/var/lib/kubelet")
FILES: Final = ("cpu_manager_state", "memory_manager_state", "device-plugins/kubelet_internal_checkpoint")
SYS: Final = Path("/host/sys")
PATTERNS: Final = (
    "devices/system/node/node*/cpulist",
    "devices/system/node/node*/distance",
    "devices/system/node/node*/meminfo",
    "devices/system/node/node*/hugepages/*/nr_hugepages",
    "devices/system/cpu/cpu*/topology/core_cpus_list",
    "devices/system/cpu/cpu*/topology/physical_package_id",
    "bus/pci/devices/*/class",
    "bus/pci/devices/*/numa_node",
)
SERVICE: Final = "/v1.PodResourcesLister/"


def podresources() -> dict[str, Any]:
    """List and GetAllocatableResources."""
    # The authority must be one that the kubelet's gRPC takes; of a unix socket it would be the path.
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix://{KUBELET}/pod-resources/kubelet.sock", options) as channel:
        return {
            "list": _call(channel, "List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse),
            "allocatable": _call(
                channel, "GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
            ),
        }


def _call(channel: grpc.Channel, method: str, request: Any, reply: Any) -> Any:
    call = channel.unary_unary(
        SERVICE + method, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
    )
    return MessageToDict(call(request, timeout=10), preserving_proto_field_name=True)


def state_files() -> dict[str, Any]:
    """Text and time of the last change, by name; of those that are there."""
    found = {}
    for name in FILES:
        path = KUBELET / name
        try:
            found[name] = {"text": path.read_text(), "changed": path.stat().st_mtime}
        except OSError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Texts of /sys by path."""
    paths = [path for pattern in PATTERNS for path in sorted(SYS.glob(pattern))]
    return {str(path.relative_to(SYS)): path.read_text() for path in paths}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        try:
            if url.path == "/relay":
                (wanted,) = urllib.parse.parse_qs(url.query)["url"]
                with urllib.request.urlopen(wanted, timeout=10) as answer:
                    self._answer(200, answer.read())
                return
            told = {"sys": machine()} if url.path == "/machine" else {"files": state_files(), **podresources()}
            self._answer(200, json.dumps({"now": time.time(), **told}).encode())
        except Exception as exc:
            self._answer(503, repr(exc).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Not in the log of the pod."""


if __name__ == "__main__":
    # What the guest's network takes is forwarded from loopback alone.
    http.server.ThreadingHTTPServer(("0.0.0.0", 9999), Handler).serve_forever()

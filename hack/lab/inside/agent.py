"""In a guest: what its kernel and its kubelet say, as they say it. A container of hack/lab's own DaemonSet.

GET / has the kubelet's state files with the time of their last change, and podresources; /machine has /sys, verbatim;
/relay?url= passes on what a pod of the guest serves. Nothing is interpreted here: the comparison is to be with the
words of kernel and kubelet, not with what some code of ours makes of them.
"""

from __future__ import annotations

import base64
import http.server
import json
import sys
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

sys.path.insert(1, "/opt/topowise/lib")
import grpc

KUBELET: Final = Path("/var/lib/kubelet")
FILES: Final = (
    "cpu_manager_state",
    "memory_manager_state",
    "device-plugins/kubelet_internal_checkpoint",
    # Of the lab's DRA driver.
    "lab-prepared",
)
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
METHODS: Final = {"list": "List", "allocatable": "GetAllocatableResources"}


class PodResources:
    """List and GetAllocatableResources as raw bytes: the host decodes them in a tenth of the guest's time.

    The connection is kept, because connecting takes a guest longer than a call. After a failure the agent reconnects at
    once; gRPC itself would back off while the kubelet restarts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel = self._connected()

    def _connected(self) -> grpc.Channel:
        # The kubelet's gRPC requires a valid authority; for a unix socket the default is the path.
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.insecure_channel(f"unix://{KUBELET}/pod-resources/kubelet.sock", options)

    def seen(self) -> dict[str, str]:
        with self._lock:
            try:
                return {name: self._call(method) for name, method in METHODS.items()}
            except grpc.RpcError:
                self._channel.close()
                self._channel = self._connected()
                raise

    def _call(self, method: str) -> str:
        call: Any = self._channel.unary_unary(SERVICE + method)
        # The request of either is an empty message.
        return base64.b64encode(call(b"", timeout=10)).decode()


def state_files() -> dict[str, Any]:
    """Returns content and modification time of the state files that exist, by name."""
    files = {}
    for name in FILES:
        path = KUBELET / name
        try:
            files[name] = {"text": path.read_text(), "changed": path.stat().st_mtime}
        except OSError:
            continue
    return files


def machine() -> dict[str, Any]:
    """Texts of /sys by path."""
    paths = [path for pattern in PATTERNS for path in sorted(SYS.glob(pattern))]
    return {str(path.relative_to(SYS)): path.read_text() for path in paths}


PODS: Final = PodResources()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        try:
            if url.path == "/relay":
                (target,) = urllib.parse.parse_qs(url.query)["url"]
                with urllib.request.urlopen(target, timeout=10) as answer:
                    self._answer(200, answer.read())
                return
            document = {"sys": machine()} if url.path == "/machine" else {"files": state_files(), **PODS.seen()}
            self._answer(200, json.dumps({"now": time.time(), **document}).encode())
        except Exception as exc:
            self._answer(503, repr(exc).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps requests out of the pod's log."""


if __name__ == "__main__":
    # What the guest's network takes is forwarded from loopback alone.
    http.server.ThreadingHTTPServer(("0.0.0.0", 9999), Handler).serve_forever()

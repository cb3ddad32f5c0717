"""The exporter and an API server as children."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from bench.exporter.kubelet import MACHINE
from demo.cluster import CRD
from sandbox import machines
from sandbox.processes import Process
from topowise import nrt
from topowise.errors import ApiError
from topowise.kube import credentials
from topowise.kube.api import Api

NODE: Final = "bench"


@contextlib.asynccontextmanager
async def api_server(root: Path) -> AsyncIterator[Api]:
    kubeconfig = root / "kubeconfig"
    arguments = ["-m", "sandbox.apiserver", "--kubeconfig-out", str(kubeconfig), "--crd", str(CRD)]
    with Process("apiserver", [sys.executable, *arguments], root / "apiserver.log"):
        for attempt in itertools.count():
            if kubeconfig.exists():
                break
            if attempt > 200:
                raise OSError("the API server did not start")
            await asyncio.sleep(0.05)
        async with Api(await credentials.load(str(kubeconfig)), "bench") as api:
            while True:
                with contextlib.suppress(ApiError):
                    await api.request("GET", nrt.PATH)
                    break
                await asyncio.sleep(0.05)
            yield api


@contextlib.asynccontextmanager
async def exporter(root: Path) -> AsyncIterator[psutil.Process]:
    sysfs, procfs = machines.write_tree(MACHINE, root / "machine")
    (root / "kubelet/config.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "topologyManagerPolicy: single-numa-node\ncpuManagerPolicy: static\n"
    )
    config: dict[str, Any] = {
        "apiVersion": "topowise.io/v1alpha1",
        "kind": "ExporterConfiguration",
        "client": {"kubeconfig": str(root / "kubeconfig")},
        "nodeName": NODE,
        "sysfsRoot": str(sysfs),
        "procfsRoot": str(procfs),
        "podresourcesSocket": str(root / "kubelet/pod-resources/kubelet.sock"),
        "kubeletRoot": str(root / "kubelet"),
        "kubelet": {"configFile": str(root / "kubelet/config.yaml")},
        "serving": {"address": "127.0.0.1", "port": 0},
    }
    file = root / "exporter.yaml"
    file.write_text(yaml.safe_dump(config))
    # gRPC's threads would have an arena of the allocator each; a container image has to set this too.
    command = ["env", "MALLOC_ARENA_MAX=2", sys.executable, "-m", "topowise_exporter", "run", "--config", str(file)]
    with Process("exporter", command, root / "exporter.log") as child:
        yield psutil.Process(child.pid)

"""Pods of every shape that kubelets treat differently."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from sandbox.hollow import LIFETIME

Json = dict[str, Any]

NUMA_SCHEDULER: Final = "numa-scheduler"
BLIND_SCHEDULER: Final = "default-scheduler"
_GPU: Final = "nvidia.com/gpu"
_VF: Final = "intel.com/e810_vf"


class Workload:
    """An endless supply; the same seed gives the same pods."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._shapes: list[tuple[int, str, Callable[[], Json]]] = [
            (30, "whole", self._whole),
            (12, "huge", self._huge),
            (10, "device", self._device),
            (12, "several", self._several),
            (8, "init", self._init),
            (6, "sidecar", self._sidecar),
            (4, "fraction", self._fraction),
            (12, "burstable", self._burstable),
            (6, "besteffort", self._best_effort),
        ]

    def pod(self, number: int, *, scheduler: str = NUMA_SCHEDULER, lifetime: float | None = None) -> Json:
        """Lives for `lifetime` seconds, None: for ever."""
        weights = [weight for weight, _, _ in self._shapes]
        _, word, make = self._random.choices(self._shapes, weights)[0]
        prefix = "blind" if scheduler == BLIND_SCHEDULER else "pod"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{prefix}-{number:04d}-{word}",
                "namespace": "default",
                "annotations": {} if lifetime is None else {LIFETIME: f"{lifetime:.3f}"},
            },
            "spec": {"schedulerName": scheduler, **make()},
        }

    def _whole(self) -> Json:
        cpus = self._cpus()
        return {"containers": [_guaranteed("app", cpu=cpus, memory=f"{cpus * self._random.choice((1, 1, 2))}Gi")]}

    def _huge(self) -> Json:
        pages = f"{64 * self._random.randint(1, 6)}Mi"
        return {"containers": [_guaranteed("dpdk", cpu=self._cpus(), memory="2Gi", **{"hugepages-2Mi": pages})]}

    def _device(self) -> Json:
        cpus = self._random.choice((1, 2, 2, 4))
        device = self._random.choice((_GPU, _VF, _VF))
        return {"containers": [_guaranteed("near", cpu=cpus, memory="2Gi", **{device: 1})]}

    def _several(self) -> Json:
        count = self._random.randint(2, 3)
        extra = {_GPU: 1} if self._random.random() < 0.2 else {}
        containers = [_guaranteed(f"c{at}", cpu=self._random.choice((1, 2, 2)), memory="1Gi") for at in range(count)]
        return {"containers": [*containers, _guaranteed("last", cpu=2, memory="1Gi", **extra)]}

    def _init(self) -> Json:
        cpus = self._random.choice((1, 2))
        first = _guaranteed("prepare", cpu=cpus + self._random.choice((0, 2)), memory="3Gi")
        return {"initContainers": [first], "containers": [_guaranteed("app", cpu=cpus, memory="1Gi")]}

    def _sidecar(self) -> Json:
        proxy = {**_guaranteed("proxy", cpu=1, memory="512Mi"), "restartPolicy": "Always"}
        prepare = _guaranteed("prepare", cpu=2, memory="1Gi")
        return {"initContainers": [proxy, prepare], "containers": [_guaranteed("app", cpu=2, memory="2Gi")]}

    def _fraction(self) -> Json:
        """Guaranteed, but on the shared pool; its memory is pinned all the same."""
        return {"containers": [_guaranteed("app", cpu="1500m", memory="2Gi")]}

    def _burstable(self) -> Json:
        amounts = {"cpu": f"{self._random.choice((250, 500, 1000))}m", "memory": "512Mi"}
        return {"containers": [{"name": "web", "image": _IMAGE, "resources": {"requests": amounts}}]}

    def _best_effort(self) -> Json:
        return {"containers": [{"name": "idle", "image": _IMAGE}]}

    def _cpus(self) -> int:
        return self._random.choice((1, 1, 2, 2, 2, 3, 4, 4, 6, 8))


_IMAGE: Final = "registry.k8s.io/pause:3.10"


def _guaranteed(name: str, **amounts: str | int) -> Json:
    limits = {resource: str(amount) for resource, amount in amounts.items()}
    return {"name": name, "image": _IMAGE, "resources": {"requests": limits, "limits": limits}}

# ruff: noqa: E501
"""Pods that a kube-apiserver rejects, by the fields that predictions read, with the texts of its errors (1.36)."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

GPU: Final = "nvidia.com/gpu"


def pod(*containers: Json, init: tuple[Json, ...] = (), **spec: Any) -> Json:
    """Returns a pod with containers of these `resources`, named c0, c1, and init containers i0, i1."""
    named = [{"name": f"c{at}", "image": "none", "resources": resources} for at, resources in enumerate(containers)]
    before = [{"name": f"i{at}", "image": "none", "resources": resources} for at, resources in enumerate(init)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"containers": named, **({"initContainers": before} if before else {}), **spec},
    }


_TWO_OF_A_NAME: Final = pod({}, {})
_TWO_OF_A_NAME["spec"]["containers"][1]["name"] = "c0"
_C0: Final = "spec.containers[0].resources"

REJECTED: Final[dict[str, tuple[Json, list[str]]]] = {
    "no containers": (pod(), ["spec.containers: Required value"]),
    "containers of the same name": (_TWO_OF_A_NAME, ['spec.containers[1].name: Duplicate value: "c0"']),
    "a negative request": (
        pod({"requests": {"cpu": "-1"}}),
        [f'{_C0}.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0'],
    ),
    "a negative limit": (
        pod({"limits": {"memory": "-1Gi"}}),
        [
            f'{_C0}.limits[memory]: Invalid value: "-1Gi": must be greater than or equal to 0',
            f'{_C0}.requests[memory]: Invalid value: "-1Gi": must be greater than or equal to 0',
        ],
    ),
    "a request above its limit": (
        pod({"requests": {"cpu": "1500m"}, "limits": {"cpu": "0.5"}}),
        [f'{_C0}.requests: Invalid value: "1500m": must be less than or equal to cpu limit of 500m'],
    ),
    "a request of memory above its limit": (
        pod({}, {"requests": {"memory": "2048Mi"}, "limits": {"memory": "1000M"}}),
        ['spec.containers[1].resources.requests: Invalid value: "2Gi": must be less than or equal to memory limit of 1G'],
    ),
    "hugepages that are no multiple of the page": (
        pod({"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}),
        [
            f'{_C0}.limits[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi',
            f'{_C0}.requests[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi',
        ],
    ),
    "hugepages of no size": (
        pod({"limits": {"hugepages-big": "4Mi", "cpu": "1"}}),
        [
            f'{_C0}.limits[hugepages-big]: Invalid value: "4Mi": 4Mi is not positive integer multiple of hugepages-big',
            f'{_C0}.requests[hugepages-big]: Invalid value: "4Mi": 4Mi is not positive integer multiple of hugepages-big',
        ],
    ),
    "hugepages alone": (
        pod({"limits": {"hugepages-2Mi": "4Mi"}}),
        [f"{_C0}: Forbidden: HugePages require cpu or memory"],
    ),
    "hugepages without a limit": (
        pod({"requests": {"hugepages-2Mi": "4Mi", "cpu": "1"}}),
        [f"{_C0}.limits: Required value: Limit must be set for non overcommitable resources"],
    ),
    "fewer devices than the limit": (
        pod({"requests": {GPU: "1"}, "limits": {GPU: "2"}}),
        [f'{_C0}.requests: Invalid value: "1": must be equal to {GPU} limit of 2'],
    ),
    "devices without a limit": (
        pod({"requests": {GPU: "1"}}),
        [f"{_C0}.limits: Required value: Limit must be set for non overcommitable resources"],
    ),
    "a part of a device": (
        pod({"limits": {GPU: "1500m"}}),
        [
            f'{_C0}.limits[{GPU}]: Invalid value: "1500m": must be an integer',
            f'{_C0}.requests[{GPU}]: Invalid value: "1500m": must be an integer',
        ],
    ),
    "a resource without a domain": (
        pod({"limits": {"gpu": "1"}}),
        [
            f'{_C0}.{field}[gpu]: Invalid value: "gpu": {rule}'
            for field in ("limits", "requests")
            for rule in ("must be a standard resource type or fully qualified", "must be a standard resource for containers")
        ],
    ),
    "an init container": (
        pod({}, init=({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},)),
        ['spec.initContainers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
    ),
    "a container of the name of an init container": (
        {**pod({}), "spec": {**pod({})["spec"], "initContainers": [{"name": "c0", "image": "none"}]}},
        ['spec.initContainers[0].name: Duplicate value: "c0"'],
    ),
    "less for the pod than for its containers": (
        pod({"requests": {"cpu": "2"}}, {"requests": {"cpu": "500m"}}, resources={"requests": {"cpu": "2"}}),
        ['spec.resources.requests[cpu]: Invalid value: "2": must be greater than or equal to aggregate container '
         "requests of 2500m"],
    ),
    "a container above the limit of the pod": (
        pod({"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}}, resources={"limits": {"memory": "1Gi"}}),
        ['spec.resources.containers[0][memory].limits: Invalid value: "2Gi": must be less than or equal to pod limits '
         "of 1Gi"],
    ),
    "devices for the pod": (
        pod({}, resources={"limits": {GPU: "1"}}),
        [
            f'spec.resources.limits[{GPU}]: Unsupported value: "{GPU}": supported values: "cpu", "hugepages-", "memory"',
        ],
    ),
    "a request of the pod above its limit": (
        pod({}, resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
        ['spec.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
    ),
}  # fmt: skip

ACCEPTED: Final[dict[str, Json]] = {
    "nothing requested": pod({}),
    "limits alone": pod({"limits": {"cpu": "2", "memory": "1Gi", GPU: "1", "hugepages-2Mi": "4Mi"}}),
    "a fraction of a byte": pod({"limits": {"memory": "1500m"}}),
    "nothing of a resource": pod({"limits": {"cpu": 0, GPU: 0}}),
    "a number": pod({"limits": {"cpu": 1.5, "memory": 1024}}),
    "a sidecar and pod-level resources": pod(
        {"requests": {"cpu": "1"}}, {}, resources={"requests": {"cpu": "2"}, "limits": {"cpu": "3", "memory": "1Gi"}}
    ),
    "storage": pod({"limits": {"ephemeral-storage": "1Gi"}}),
}

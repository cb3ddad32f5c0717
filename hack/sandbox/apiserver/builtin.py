"""The built-in kinds a node agent, a scheduler and kubectl need, as a table.

Flags are from the registry strategy of each kind in kubernetes/kubernetes (`pkg/registry/**/strategy.go`).
"""

from __future__ import annotations

from sandbox.apiserver.resources import Catalog, Resource, Version

_V1 = (Version("v1"),)

BUILTIN: tuple[Resource, ...] = (
    Resource(
        "", "Node", "nodes", _V1,
        short_names=("no",), has_status=True, keeps_status_on_create=True,
        selectable_fields=("spec.unschedulable",),
    ),
    Resource(
        "", "Pod", "pods", _V1,
        namespaced=True, short_names=("po",), categories=("all",), has_status=True, has_generation=True,
        subresources={"binding": ("v1", "Binding"), "eviction": ("policy/v1", "Eviction")}, returns_deleted=True,
        selectable_fields=(
            "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
            "status.phase", "status.podIP", "status.nominatedNodeName",
        ),
    ),
    Resource("", "Namespace", "namespaces", _V1, short_names=("ns",), has_status=True,
             selectable_fields=("status.phase",)),
    Resource(
        "", "Event", "events", _V1,
        namespaced=True, short_names=("ev",), create_on_update=True,
        selectable_fields=(
            "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
            "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
            "reason", "reportingComponent", "source", "type",
        ),
    ),
    Resource("", "ConfigMap", "configmaps", _V1, namespaced=True, short_names=("cm",)),
    Resource("", "Secret", "secrets", _V1, namespaced=True, selectable_fields=("type",)),
    Resource("", "Service", "services", _V1, namespaced=True, short_names=("svc",), categories=("all",),
             has_status=True, returns_deleted=True),
    Resource("", "ServiceAccount", "serviceaccounts", _V1, namespaced=True, short_names=("sa",), returns_deleted=True),
    *(
        Resource("apps", kind, f"{kind.lower()}s", _V1, namespaced=True, short_names=(short,), categories=("all",),
                 has_status=True, has_generation=True)
        for kind, short in (("Deployment", "deploy"), ("ReplicaSet", "rs"), ("StatefulSet", "sts"), ("DaemonSet", "ds"))
    ),
    Resource("batch", "Job", "jobs", _V1, namespaced=True, categories=("all",), has_status=True, has_generation=True),
    Resource("policy", "PodDisruptionBudget", "poddisruptionbudgets", _V1, namespaced=True, short_names=("pdb",),
             has_status=True, has_generation=True, unconditional_update=False),
    Resource("coordination.k8s.io", "Lease", "leases", _V1, namespaced=True, unconditional_update=False,
             create_on_update=True),
    Resource("resource.k8s.io", "ResourceSlice", "resourceslices", _V1, has_generation=True,
             selectable_fields=("spec.nodeName", "spec.driver")),
    Resource("resource.k8s.io", "ResourceClaim", "resourceclaims", _V1, namespaced=True, has_status=True),
    Resource("resource.k8s.io", "DeviceClass", "deviceclasses", _V1, has_generation=True),
    Resource("events.k8s.io", "Event", "events", _V1, namespaced=True, short_names=("ev",), create_on_update=True,
             selectable_fields=("reason", "reportingController", "type", "regarding.name", "regarding.namespace")),
    # What a chart brings along; nothing here acts on it.
    *(
        Resource("rbac.authorization.k8s.io", kind, f"{kind.lower()}s", _V1, namespaced=not kind.startswith("Cluster"))
        for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    ),
    Resource("networking.k8s.io", "NetworkPolicy", "networkpolicies", _V1, namespaced=True, short_names=("netpol",),
             has_generation=True),
    Resource("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", _V1,
             has_status=True, has_generation=True),
    Resource("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings",
             _V1, has_generation=True),
    Resource("scheduling.k8s.io", "PriorityClass", "priorityclasses", _V1, short_names=("pc",), has_generation=True),
    Resource("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", _V1,
             short_names=("crd", "crds"), has_status=True, has_generation=True, unconditional_update=False),
)  # fmt: skip


def catalog() -> Catalog:
    """Returns a catalogue of the built-in kinds."""
    served = Catalog()
    for resource in BUILTIN:
        served.add(resource)
    return served

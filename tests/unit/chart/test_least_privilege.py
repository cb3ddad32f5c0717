"""What every rendered workload and role must not have, whichever recipe and options it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from forbidden_rights import FOREIGN_ROLES, NEVER_RESOURCES, NEVER_VERBS
from rendered_chart import CHART, RECIPES, Document
from topowise.runtime import config
from topowise_exporter.configuration import ExporterConfiguration
from topowise_scheduler.configuration import SchedulerConfiguration

# Of test_objects_are_of_one_piece; a Role may be of another namespace.
NAMESPACED = {"DaemonSet", "Deployment", "ConfigMap", "Secret", "Service", "ServiceAccount", "NetworkPolicy"}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
EVERYTHING = (
    "crds.numatopology=true",
    "exporter.config.numatopology=true",
    "exporter.config.kubelet.configz.enabled=true",
    "networkPolicy.egress.enabled=true",
    "monitoring.monitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
    "scheduler.config.grpc.address=0.0.0.0",
    "scheduler.config.grpc.port=50051",
    "scheduler.config.ui.enabled=true",
)
GATE = ("scheduler.mode=gate",)


@pytest.fixture(
    scope="module",
    params=[*((recipe, more) for recipe in RECIPES for more in ((), EVERYTHING)), ("", GATE), ("", GATE + EVERYTHING)],
    ids=lambda parameters: "-".join(
        (
            parameters[0] or "default",
            *("gate",) * (GATE[0] in parameters[1]),
            *("all",) * (EVERYTHING[0] in parameters[1]),
        )
    ),
)
def objects(request: pytest.FixtureRequest, render: Any) -> Any:
    recipe, more = request.param
    return render(recipe, *more)


def roles(objects: Any) -> list[Document]:
    return [*objects.kinds("ClusterRole"), *objects.kinds("Role")]


def pods(objects: Any) -> list[tuple[str, Document]]:
    workloads = [item for kind in ("DaemonSet", "Deployment", "StatefulSet", "Job") for item in objects.kinds(kind)]
    return [(item["metadata"]["name"], item["spec"]["template"]["spec"]) for item in workloads]


def containers(pod: Document) -> list[Document]:
    return [*pod["containers"], *pod.get("initContainers", ())]


def test_objects_are_of_one_piece(objects: Any) -> None:
    names = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in objects]
    assert len(set(names)) == len(names)
    for item in objects:
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "topowise"
        if item["kind"] in NAMESPACED:
            assert item["metadata"]["namespace"] == "topowise-system"
    accounts = {item["metadata"]["name"] for item in objects.kinds("ServiceAccount")}
    for workload in (*objects.kinds("DaemonSet"), *objects.kinds("Deployment")):
        template = workload["spec"]["template"]
        labels, pod = template["metadata"]["labels"], template["spec"]
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
        # By these two `kubectl topowise doctor` finds them.
        assert labels["app.kubernetes.io/part-of"] == "topowise"
        assert labels["app.kubernetes.io/component"] in workload["metadata"]["name"]
        volumes = {item["name"]: item for item in pod["volumes"]}
        for container in containers(pod):
            assert {item["name"] for item in container["volumeMounts"]} <= volumes.keys()
            assert container["resources"]["requests"]
        assert all(objects.named("ConfigMap", it["configMap"]["name"]) for it in volumes.values() if "configMap" in it)
        assert pod["serviceAccountName"] in accounts
    for name, kind in (("exporter", ExporterConfiguration), ("scheduler", SchedulerConfiguration)):
        for map_ in objects.kinds("ConfigMap"):
            if map_["metadata"]["name"] == f"topowise-{name}":
                config.parse(kind, map_["data"][f"{name}.yaml"].encode())


def test_no_role_has_a_wildcard_or_reaches_beyond_its_name(objects: Any) -> None:
    policies = {policy["metadata"]["name"] for policy in objects.kinds("ValidatingAdmissionPolicy")}
    # Only of placement: which pods, a policy limits.
    pods = {"delete"} if {"topowise-scheduler-refused-pods", "topowise-scheduler-placement"} <= policies else set()
    for role in roles(objects):
        for rule in role["rules"]:
            limited = pods if rule["resources"] == ["pods"] else set()
            assert not NEVER_VERBS & set(rule["verbs"]) - limited, role["metadata"]["name"]
            # The token of a single account, requested by the sidecar container.
            named = {"serviceaccounts/token"} if rule.get("resourceNames") and rule["verbs"] == ["create"] else set()
            assert not NEVER_RESOURCES & set(rule.get("resources", ())) - named, role["metadata"]["name"]
            assert "*" not in rule.get("apiGroups", ())
            assert not rule.get("nonResourceURLs")


def test_only_our_accounts_get_our_roles_and_the_exporter_no_other(objects: Any) -> None:
    own = {role["metadata"]["name"] for role in roles(objects)}
    for binding in (*objects.kinds("ClusterRoleBinding"), *objects.kinds("RoleBinding")):
        assert binding["roleRef"]["name"] in own | FOREIGN_ROLES.keys()
        for subject in binding["subjects"]:
            assert subject["kind"] in ("ServiceAccount", "User")
            # Roles that are not in the chart are read too: they are another identity's.
            if binding["roleRef"]["name"] in FOREIGN_ROLES:
                assert subject["name"].endswith("-kube-scheduler")


def test_the_container_of_the_service_has_no_token_of_kube_scheduler_s(objects: Any) -> None:
    for name, pod in pods(objects):
        if not name.endswith("-scheduler") or not pod["serviceAccountName"].endswith("-kube-scheduler"):
            continue
        tokens = {
            container["name"]: [mount["name"] for mount in container["volumeMounts"] if mount["mountPath"] == TOKEN]
            for container in containers(pod)
        }
        assert tokens == {
            "kube-scheduler": ["kube-scheduler-token"],
            "token": ["kube-scheduler-token"],
            "scheduler": ["service-token"],
        }
        assert {container["name"] for container in pod["initContainers"]} == {"token", "scheduler"}
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "service-token"]
        # In memory, and of the pod alone: it goes with the pod.
        assert volume["emptyDir"]["medium"] == "Memory"
        (requester,) = [container for container in pod["initContainers"] if container["name"] == "token"]
        (account,) = [
            argument.partition("=")[2] for argument in requester["command"] if argument.startswith("--account=")
        ]
        assert account.endswith("-scheduler")
        assert not account.endswith("-kube-scheduler")


def test_no_token_is_good_for_longer_than_an_hour(objects: Any) -> None:
    """The API server grants a year for the 3607 s that Kubernetes requests where it mounts a token by itself."""
    assert not [secret for secret in objects.kinds("Secret") if secret["type"] == "kubernetes.io/service-account-token"]
    for name, pod in pods(objects):
        assert pod["automountServiceAccountToken"] is False
        sources = [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", ())]
        seconds = [
            source["serviceAccountToken"]["expirationSeconds"] for source in sources if "serviceAccountToken" in source
        ]
        assert seconds == [3600], name


def test_pods_are_confined(objects: Any) -> None:
    for name, pod in pods(objects):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for namespace in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
            assert not pod.get(namespace), f"{name}: {namespace}"
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert not context.get("privileged")
            assert "procMount" not in context
            assert container["resources"]["limits"]["memory"] if container["name"] != "kube-scheduler" else True
            assert all("hostPort" not in port for port in container.get("ports", ()))


def test_only_the_exporter_is_root_and_sees_the_host_and_only_to_read(objects: Any) -> None:
    for name, pod in pods(objects):
        hosts = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
        if name.endswith("-exporter"):
            assert hosts
            for container in containers(pod):
                assert all(mount["readOnly"] for mount in container["volumeMounts"])
                # What is mounted below, and anything that could be mounted there later, neither.
                assert not any(mount.get("mountPropagation") == "Bidirectional" for mount in container["volumeMounts"])
            continue
        assert not hosts
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        for container in containers(pod):
            assert not container["securityContext"].get("runAsUser")


def test_a_token_is_mounted_where_it_is_used_and_nowhere_else(objects: Any) -> None:
    for account in objects.kinds("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for _, pod in pods(objects):
        for container in containers(pod):
            assert [mount["mountPath"] for mount in container["volumeMounts"]].count(TOKEN) == 1


def test_the_network_reaches_only_what_is_served(objects: Any) -> None:
    policies = {item["metadata"]["name"]: item["spec"] for item in objects.kinds("NetworkPolicy")}
    for name, pod in pods(objects):
        listening = {port["containerPort"] for container in containers(pod) for port in container.get("ports", ())}
        let_in = {port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]}
        assert let_in <= listening


def test_keys_of_the_extender_are_in_a_secret_and_nothing_else_is(objects: Any) -> None:
    for secret in objects.kinds("Secret"):
        assert secret["type"] == "kubernetes.io/tls"
    for item in objects.kinds("ConfigMap"):
        assert "PRIVATE KEY" not in yaml.safe_dump(item)


@pytest.mark.parametrize("path", sorted(CHART.glob("recipes/kubeadm/*.yaml")), ids=lambda path: path.stem)
def test_a_static_pod_is_confined_too(path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if not isinstance(document, dict) or document.get("kind") != "Pod":
            continue
        pod = document["spec"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert all(mount["readOnly"] for mount in container["volumeMounts"])

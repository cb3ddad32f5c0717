"""What every rendered workload and role must not have, whichever recipe and options it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from forbidden_rights import FOREIGN_ROLES, NEVER_RESOURCES, NEVER_VERBS

Document = dict[str, Any]

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
CHART = Path(__file__).parents[3] / "charts/topowise"
RECIPES = ["", *sorted(path.stem for path in (CHART / "recipes").glob("*.yaml"))]
EVERYTHING = (
    "crds.numatopology=true",
    "exporter.config.numatopology=true",
    "exporter.config.kubelet.configz.enabled=true",
    "exporter.config.notifyFile=/run/topowise/notify",
    "networkPolicy.egress.enabled=true",
    "monitoring.dashboard.enabled=true",
    "scheduler.config.grpc.address=0.0.0.0",
    "scheduler.config.grpc.port=50051",
    "scheduler.config.ui.enabled=true",
)


@pytest.fixture(
    scope="module",
    params=[(recipe, more) for recipe in RECIPES for more in ((), EVERYTHING)],
    ids=lambda one: f"{one[0] or 'default'}{'-all' if one[1] else ''}",
)
def made(request: pytest.FixtureRequest, render: Any) -> Any:
    recipe, more = request.param
    return render(recipe, *more)


def roles(made: Any) -> list[Document]:
    return [*made.kinds("ClusterRole"), *made.kinds("Role")]


def pods(made: Any) -> list[tuple[str, Document]]:
    workloads = [one for kind in ("DaemonSet", "Deployment", "StatefulSet", "Job") for one in made.kinds(kind)]
    return [(one["metadata"]["name"], one["spec"]["template"]["spec"]) for one in workloads]


def containers(pod: Document) -> list[Document]:
    return [*pod["containers"], *pod.get("initContainers", ())]


def test_no_role_has_a_wildcard_or_reaches_beyond_its_name(made: Any) -> None:
    for role in roles(made):
        for rule in role["rules"]:
            assert not NEVER_VERBS & set(rule["verbs"]), role["metadata"]["name"]
            # The token of one account alone, requested by the container beside it.
            named = {"serviceaccounts/token"} if rule.get("resourceNames") and rule["verbs"] == ["create"] else set()
            assert not NEVER_RESOURCES & set(rule.get("resources", ())) - named, role["metadata"]["name"]
            assert "*" not in rule.get("apiGroups", ())
            assert not rule.get("nonResourceURLs")


def test_only_our_accounts_get_our_roles_and_the_exporter_no_other(made: Any) -> None:
    own = {role["metadata"]["name"] for role in roles(made)}
    for binding in (*made.kinds("ClusterRoleBinding"), *made.kinds("RoleBinding")):
        assert binding["roleRef"]["name"] in own | FOREIGN_ROLES.keys()
        for subject in binding["subjects"]:
            assert subject["kind"] in ("ServiceAccount", "User")
            # Roles that are not in the chart are read too: they are another identity's.
            if binding["roleRef"]["name"] in FOREIGN_ROLES:
                assert subject["name"].endswith("-kube-scheduler")


def test_the_container_of_the_service_has_no_token_of_kube_scheduler_s(made: Any) -> None:
    for name, pod in pods(made):
        if not name.endswith("-scheduler") or not pod["serviceAccountName"].endswith("-kube-scheduler"):
            continue
        tokens = {
            container["name"]: [one["name"] for one in container["volumeMounts"] if one["mountPath"] == TOKEN]
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
        (account,) = [one.partition("=")[2] for one in requester["command"] if one.startswith("--account=")]
        assert account.endswith("-scheduler")
        assert not account.endswith("-kube-scheduler")


def test_no_token_is_good_for_longer_than_an_hour(made: Any) -> None:
    """The API server grants a year for the 3607 s that Kubernetes requests where it mounts a token by itself."""
    assert not [one for one in made.kinds("Secret") if one["type"] == "kubernetes.io/service-account-token"]
    for name, pod in pods(made):
        assert pod["automountServiceAccountToken"] is False
        sources = [source for volume in pod["volumes"] for source in volume.get("projected", {}).get("sources", ())]
        seconds = [
            source["serviceAccountToken"]["expirationSeconds"] for source in sources if "serviceAccountToken" in source
        ]
        assert seconds == [3600], name


def test_pods_are_confined(made: Any) -> None:
    for name, pod in pods(made):
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


def test_only_the_exporter_is_root_and_sees_the_host_and_only_to_read(made: Any) -> None:
    for name, pod in pods(made):
        hosts = {one["name"] for one in pod["volumes"] if "hostPath" in one}
        if name.endswith("-exporter"):
            assert hosts
            for container in containers(pod):
                assert all(one["readOnly"] for one in container["volumeMounts"])
                # What is mounted below, and anything that could be mounted there later, neither.
                assert not any(one.get("mountPropagation") == "Bidirectional" for one in container["volumeMounts"])
            continue
        assert not hosts
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        for container in containers(pod):
            assert not container["securityContext"].get("runAsUser")


def test_a_token_is_mounted_where_it_is_used_and_nowhere_else(made: Any) -> None:
    for account in made.kinds("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False
    for _, pod in pods(made):
        for container in containers(pod):
            assert [one["mountPath"] for one in container["volumeMounts"]].count(TOKEN) == 1


def test_an_exporter_writes_for_its_own_node_alone(made: Any) -> None:
    if not made.kinds("DaemonSet"):
        return
    (policy,) = (one for one in made.kinds("ValidatingAdmissionPolicy") if "own-node" in one["metadata"]["name"])
    (binding,) = (
        one for one in made.kinds("ValidatingAdmissionPolicyBinding") if "own-node" in one["metadata"]["name"]
    )
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    written = {
        resource
        for role in made.kinds("ClusterRole")
        if role["metadata"]["name"].endswith("-exporter")
        for one in role["rules"]
        if {"create", "patch", "update"} & set(one["verbs"])
        for resource in one["resources"]
    }
    assert written <= set(rule["resources"])
    (condition,) = policy["spec"]["matchConditions"]
    (daemon,) = made.kinds("DaemonSet")
    account = daemon["spec"]["template"]["spec"]["serviceAccountName"]
    assert condition["expression"].endswith(f':{daemon["metadata"]["namespace"]}:{account}"')


def test_the_network_reaches_only_what_is_served(made: Any) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in made.kinds("NetworkPolicy")}
    for name, pod in pods(made):
        listening = {port["containerPort"] for one in containers(pod) for port in one.get("ports", ())}
        let_in = {port["port"] for rule in policies[name]["ingress"] for port in rule["ports"]}
        assert let_in <= listening


def test_keys_of_the_extender_are_in_a_secret_and_nothing_else_is(made: Any) -> None:
    for secret in made.kinds("Secret"):
        assert secret["type"] == "kubernetes.io/tls"
    for one in made.kinds("ConfigMap"):
        assert "PRIVATE KEY" not in yaml.safe_dump(one)


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
            assert all(one["readOnly"] for one in container["volumeMounts"])

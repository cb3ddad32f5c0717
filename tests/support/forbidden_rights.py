"""What no role of ours has, and what of it roles have that Kubernetes makes and a kube-scheduler needs."""

from __future__ import annotations

# Verbs that give more rights than they name, and resources that are other people's rights or doings.
NEVER_VERBS = {"*", "escalate", "bind", "impersonate", "deletecollection", "delete"}
NEVER_RESOURCES = {
    *(
        "*",
        "secrets",
        "configmaps",
        "serviceaccounts",
        "serviceaccounts/token",
        "nodes/proxy",
        "certificatesigningrequests",
    ),
    *("pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "pods/ephemeralcontainers", "pods/eviction"),
}
# For the stock kube-scheduler that runs beside us, and for it alone: what it has of NEVER_VERBS and NEVER_RESOURCES by
# roles that Kubernetes makes (plugin/pkg/auth/authorizer/rbac/bootstrappolicy; compared with a real API server's in
# test_on_a_cluster.py).
FOREIGN_ROLES: dict[str, set[tuple[str, str]]] = {
    "system:kube-scheduler": {
        ("pods", "delete"),
        ("resourceclaims", "delete"),
        ("leasecandidates", "delete"),
        ("leasecandidates", "deletecollection"),
    },
    "system:volume-scheduler": set(),
    "extension-apiserver-authentication-reader": {
        ("configmaps", "get"),
        ("configmaps", "list"),
        ("configmaps", "watch"),
    },
}

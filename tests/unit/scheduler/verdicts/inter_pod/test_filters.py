"""Cases of kube-scheduler's own tests: podtopologyspread/filtering_test.go, interpodaffinity/filtering_test.go,
nodeports/node_ports_test.go, and what the objections say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from constrained_pods import AFFINITY, ANTI_AFFINITY, EXISTING, HOST, LABEL, PORTS, SPREAD, TAINT, ZONE, apply, decode
from topowise_scheduler.ledger.nodes import Nodes
from topowise_scheduler.verdicts.inter_pod import InterPodIndex, Unexamined
from topowise_scheduler.verdicts.inter_pod.constraints import LARGEST_KIND, LARGEST_REQUEST
from topowise_scheduler.verdicts.inter_pod.index import MOST_TALLIES
from topowise_scheduler.verdicts.kube_scheduler import NO_NODE, LabelSelector

Json = dict[str, Any]
DB = {"matchLabels": {"app": "db"}}
LEAVING = "2026-11-28T12:00:00Z"
ZONES: dict[str, Json] = {"a1": {ZONE: "a"}, "a2": {ZONE: "a"}, "b1": {ZONE: "b"}, "x1": {}}


def pod(name: str = "new", node: str = "", namespace: str = "default", **spec: Any) -> Json:
    metadata = {"name": name, "uid": name, "namespace": namespace, "labels": spec.pop("labels", {"app": "db"})}
    if spec.pop("leaving", False):
        metadata["deletionTimestamp"] = LEAVING
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{}], **spec}}


def spread(key: str = ZONE, skew: int = 1, selector: Json | None = DB, **more: Any) -> Json:
    return {
        "topologyKey": key,
        "maxSkew": skew,
        "labelSelector": selector,
        "whenUnsatisfiable": "DoNotSchedule",
        **more,
    }


def spreads(*constraints: Json) -> Json:
    return {"topologySpreadConstraints": list(constraints)}


def terms(kind: str, *items: Json) -> Json:
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(items)}}}


def term(key: str = ZONE, selector: Json | None = DB, **more: Any) -> Json:
    return {"topologyKey": key, "labelSelector": selector, **more}


def near(*items: Json) -> Json:
    return terms("podAffinity", *items)


def apart(*items: Json) -> Json:
    return terms("podAntiAffinity", *items)


def port(number: int, ip: str | None = None, protocol: str | None = None) -> Json:
    ports = [{"hostPort": number, "hostIP": ip, "protocol": protocol}]
    return {"containers": [{"ports": ports}]}


def index(
    nodes: dict[str, Json] = ZONES, existing: list[Json] | None = None, taints: tuple[str, ...] = (), **more: Any
) -> InterPodIndex:
    known = Nodes()
    for name, labels in nodes.items():
        spec = {"taints": [TAINT]} if name in taints else {}
        apply(known, {"metadata": {"name": name, "labels": {HOST: name, **labels}}, "spec": spec})
    result = InterPodIndex(known, **more)
    for number, item in enumerate(existing or ()):
        item["metadata"]["uid"] = f"existing-{number}"
        result.put(decode(item))
    return result


def refused(pods: InterPodIndex, new: Json, *, as_only: str = "") -> dict[str, str]:
    """The words by refused node."""
    names = [as_only] if as_only else list(ZONES)
    verdicts = pods.verdicts(pods.request(decode(new)), names, as_only=bool(as_only))
    objections = {name: verdicts.objection(at) for at, name in enumerate(names)}
    return {name: objection.words for name, objection in objections.items() if objection is not None}


X = {"x1": LABEL}
A = {"a1": SPREAD, "a2": SPREAD}
IN_A = {"nodeSelector": {ZONE: "a"}}


@pytest.mark.parametrize(
    ("existing", "new", "expected"),
    [
        pytest.param([], spreads(spread()), X, id="no pod"),
        pytest.param([pod(node="a1")], spreads(spread()), A | X, id="b has fewer"),
        pytest.param([pod(node="a1")], spreads(spread(skew=2)), X, id="within the skew"),
        pytest.param([pod(node="a1"), pod(node="b1")], spreads(spread()), X, id="even"),
        pytest.param([pod(node="a1")], spreads(spread()) | {"labels": {}}, X, id="does not count itself"),
        pytest.param([pod(node="a1", leaving=True)], spreads(spread()), X, id="leaving pods do not count"),
        pytest.param([pod(node="a1", namespace="other")], spreads(spread()), X, id="another namespace"),
        pytest.param([pod(node="x1"), pod(node="gone")], spreads(spread()), X, id="nodes without the label"),
        pytest.param([pod(node="a1")], spreads(spread(selector=None)), X, id="no selector"),
        pytest.param([pod(node="a1")], spreads(spread(selector={})), X, id="an empty selector counts no pod"),
        pytest.param([], spreads(spread(minDomains=3)), X, id="minDomains: the fewest are none"),
        pytest.param(
            [pod(node="a1"), pod(node="b1")],
            spreads(spread(minDomains=3)),
            A | {"b1": SPREAD} | X,
            id="minDomains are missing",
        ),
        pytest.param([pod(node="a1"), pod(node="b1")], spreads(spread(minDomains=2)), X, id="minDomains are there"),
        pytest.param([pod(node="a1")], spreads(spread()) | IN_A, X, id="Honor: b is no domain"),
        pytest.param(
            [pod(node="a1")], spreads(spread(nodeAffinityPolicy="Ignore")) | IN_A, A | X, id="Ignore: b is a domain"
        ),
        pytest.param(
            [pod(node="a1")],
            spreads(spread(), spread(HOST)),
            A | X,
            id="both constraints",
        ),
        pytest.param(
            [pod(node="x1"), pod(node="a1"), pod(node="b1")],
            spreads(spread(HOST), spread()),
            {"a1": SPREAD, "b1": SPREAD, "x1": LABEL},
            id="pods of a node without all labels do not count",
        ),
        pytest.param(
            [pod(node="a1", labels={"app": "db", "hash": "1"})],
            spreads(spread(matchLabelKeys=["hash", "none"])) | {"labels": {"app": "db", "hash": "2"}},
            X,
            id="matchLabelKeys: of another revision",
        ),
        pytest.param(
            [pod(node="a1", labels={"app": "db", "hash": "2"})],
            spreads(spread(matchLabelKeys=["hash", "none"])) | {"labels": {"app": "db", "hash": "2"}},
            A | X,
            id="matchLabelKeys: of this revision",
        ),
        pytest.param([pod(node="a1")], spreads(spread() | {"whenUnsatisfiable": "ScheduleAnyway"}), {}, id="soft"),
    ],
)
def test_pod_topology_spread(existing: list[Json], new: Json, expected: dict[str, str]) -> None:
    assert refused(index(existing=existing), pod(**new)) == expected


@pytest.mark.parametrize(
    ("policy", "tolerations", "expected"),
    [("Ignore", [], A), ("Honor", [], {}), ("Honor", [{"operator": "Exists"}], A)],
)
def test_tainted_nodes_are_no_domain_if_taints_are_honoured(
    policy: str, tolerations: list[Json], expected: dict[str, str]
) -> None:
    """The node of zone b is tainted, so that zone a is the only domain."""
    pods = index(existing=[pod(node="a1")], taints=("b1",))
    new = pod(**spreads(spread(nodeTaintsPolicy=policy)), tolerations=tolerations)
    assert refused(pods, new) == expected | X


NOT_IN_B = {"b1": AFFINITY, "x1": AFFINITY}
EVERYWHERE = {"a1": AFFINITY, "a2": AFFINITY} | NOT_IN_B
WEB = {"matchLabels": {"app": "web"}}
BY_NAME = {"matchLabels": {"kubernetes.io/metadata.name": "other"}}


@pytest.mark.parametrize(
    ("existing", "new", "expected"),
    [
        pytest.param([pod(node="a1")], near(term()), NOT_IN_B, id="near"),
        pytest.param([pod(node="a1", leaving=True)], near(term()), NOT_IN_B, id="near a leaving pod"),
        pytest.param([], near(term()), {"x1": AFFINITY}, id="the first of a series"),
        pytest.param([pod(node="x1")], near(term()), {"x1": AFFINITY}, id="the first that counts"),
        pytest.param([], near(term(selector=WEB)), EVERYWHERE, id="nothing to be near"),
        pytest.param([], near(term(selector=None)), EVERYWHERE, id="selects nothing"),
        pytest.param([pod(node="a1", namespace="other")], near(term(selector=WEB)), EVERYWHERE, id="namespace"),
        pytest.param(
            [pod(node="a1", namespace="other")], near(term(namespaces=["other"])), NOT_IN_B, id="named namespace"
        ),
        pytest.param(
            [pod(node="a1", namespace="other")], near(term(namespaceSelector={})), NOT_IN_B, id="all namespaces"
        ),
        pytest.param(
            [pod(node="a1", namespace="other")], near(term(namespaceSelector=BY_NAME)), NOT_IN_B, id="selected by name"
        ),
        pytest.param(
            [pod(node="a1", labels={"app": "db"}), pod(node="b1", labels={"app": "web"})],
            near(term(), term(HOST, selector=WEB)),
            EVERYWHERE,
            id="one pod has to match all terms",
        ),
        pytest.param([pod(node="a1")], near(term(), term(HOST)), {"a2": AFFINITY} | NOT_IN_B, id="each term's domain"),
        pytest.param([pod(node="a1")], apart(term()), {"a1": ANTI_AFFINITY, "a2": ANTI_AFFINITY}, id="apart"),
        pytest.param([pod(node="x1")], apart(term()), {}, id="no domain to be apart from"),
        pytest.param([pod(node="a1")], apart(term(HOST)), {"a1": ANTI_AFFINITY}, id="apart from a node"),
        pytest.param(
            [pod(node="a1", **apart(term()))],
            {},
            {"a1": EXISTING, "a2": EXISTING},
            id="an existing pod wants to be apart",
        ),
        pytest.param(
            [pod(node="a1", **apart(term(), term(HOST))), pod(node="b1", **apart(term(HOST)))],
            {},
            {"a1": EXISTING, "a2": EXISTING, "b1": EXISTING},
            id="several terms",
        ),
        pytest.param([pod(node="a1", **apart(term(selector=WEB)))], {}, {}, id="apart from other pods"),
        pytest.param([pod(node="a1", namespace="other", **apart(term()))], {}, {}, id="apart in its namespace"),
        pytest.param(
            [pod(node="a1", namespace="other", **apart(term(HOST, namespaceSelector={})))],
            {},
            {"a1": EXISTING},
            id="apart from all namespaces",
        ),
        pytest.param(
            [pod(node="a1", **apart(term()))],
            apart(term()),
            {"a1": ANTI_AFFINITY, "a2": ANTI_AFFINITY},
            id="its own rule is named first",
        ),
    ],
)
def test_inter_pod_affinity(existing: list[Json], new: Json, expected: dict[str, str]) -> None:
    assert refused(index(existing=existing), pod(**new)) == expected


@pytest.mark.parametrize(
    ("used", "wanted", "conflicts"),
    [
        (port(80), port(80), True),
        (port(80), port(81), False),
        (port(80), port(80, protocol="UDP"), False),
        (port(80, "10.0.0.1"), port(80, "10.0.0.2"), False),
        (port(80, "10.0.0.1"), port(80), True),
        (port(80), port(80, "10.0.0.1"), True),
        (port(0), port(0), False),
        ({"initContainers": [{"restartPolicy": "Always", **port(80)["containers"][0]}]}, port(80), True),
        ({"initContainers": port(80)["containers"]}, port(80), False),
    ],
)
def test_host_ports(used: Json, wanted: Json, conflicts: bool) -> None:
    assert refused(index(existing=[pod(node="a1", **used)]), pod(**wanted)) == ({"a1": PORTS} if conflicts else {})


def test_ports_are_refused_before_other_constraints() -> None:
    pods = index(existing=[pod(node="a1", **port(80), **apart(term(HOST)))])
    assert refused(pods, pod(**port(80), **spreads(spread(HOST)))) == {"a1": PORTS}


def test_a_named_node_passes_every_skew_but_not_min_domains() -> None:
    pods = index(existing=[pod(node="a1")])
    assert refused(pods, pod(**spreads(spread())), as_only="a1") == {}
    # With one domain left, the fewest pods count as none.
    few = pod(**spreads(spread(minDomains=2)))
    assert refused(pods, few, as_only="a1") == {"a1": SPREAD}
    assert refused(pods, few, as_only="b1") == {}
    assert refused(pods, pod(**spreads(spread(nodeAffinityPolicy="Ignore"))), as_only="a1") == {"a1": SPREAD}


def test_objections_say_what_is_missing_on_the_node() -> None:
    pods = index(existing=[pod(node="a1", **port(80)), pod(node="b1", labels={"app": "web"}, **apart(term(HOST)))])
    names = [*ZONES, "unknown"]

    def texts(**new: Any) -> list[tuple[str, str]]:
        verdicts = pods.verdicts(pods.request(decode(pod(**new))), names)
        found = [verdicts.objection(at) for at in range(len(names))]
        assert found.pop() == NO_NODE
        return [(item.verdict, item.text) for item in found if item is not None]

    assert texts(**spreads(spread(HOST)), **port(80)) == [
        ("not now", f"{PORTS}: 80/TCP"),
        ("not now", f"{EXISTING}: {HOST}=b1"),
    ]
    in_a = f"{SPREAD}: {ZONE}=a has 1 such pods, the fewest are 0, maxSkew is 1"
    assert texts(**spreads(spread())) == [
        ("not now", in_a),
        ("not now", in_a),
        ("not now", f"{EXISTING}: {HOST}=b1"),
        ("excluded", f"{LABEL}: {ZONE}"),
    ]
    assert texts(**near(term(HOST))) == [
        ("excluded", f"{AFFINITY}: {HOST}"),
        ("excluded", f"{AFFINITY}: {HOST}"),
        ("excluded", f"{AFFINITY}: {HOST}"),
    ]


def test_a_pod_without_constraints_passes_everywhere_at_once() -> None:
    pods = index(existing=[pod(node="a1", **apart(term(selector=WEB)))])
    verdicts = pods.verdicts(pods.request(decode(pod())), list(ZONES))
    assert verdicts.allowed() == list(ZONES)
    # No array was made.
    assert not pods._tallies and not pods.rows._domains


def test_a_placed_pod_counts_until_it_is_withdrawn_or_gone() -> None:
    pods, new = index(), pod(**apart(term(HOST)))
    pods.put(decode(new))
    second = pod("second", **apart(term(HOST)))
    assert refused(pods, second) == {}
    for leave in (lambda: pods.withdraw("new"), lambda: pods.retain({"second"})):
        pods.place("new", "a1")
        # An event of the pod that does not show the node yet.
        pods.put(decode(new))
        pods.retain({"new"})
        assert refused(pods, second) == {"a1": ANTI_AFFINITY}
        leave()
        assert refused(pods, second) == {}
    pods.place("new", "a1")
    assert not pods.known("new") and pods.request_of("new") is None
    pods.put(decode(pod(node="b1")))
    pods.place("new", "a1")
    assert refused(pods, second) == {"b1": ANTI_AFFINITY}


def test_changes_are_those_of_counted_pods() -> None:
    pods = index(existing=[pod(node="a1")])
    changes = [pods.changes]

    def is_change() -> bool:
        changes.append(pods.changes)
        return changes[-1] > changes[-2]

    pods.put(decode(pod()))
    assert not is_change()
    pods.place("new", "a1")
    assert is_change()
    pods.put(decode(pod()))
    assert not is_change()
    pods.put(decode(pod(labels={"app": "web"})))
    assert is_change()
    pods.withdraw("new")
    assert is_change()
    pods.drop("new")
    assert not is_change()
    pods.drop("existing-0")
    assert is_change()


SELECTS_TEAM = {"matchLabels": {"team": "red"}}


def test_requirements_that_are_not_examined_are_named() -> None:
    new = pod(
        **near(term(namespaceSelector=SELECTS_TEAM), term(namespaceSelector=BY_NAME)),
        volumes=[
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}},
            {"name": "inline", "csi": {"driver": "example.com"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        resourceClaims=[{"name": "gpu"}],
        schedulingGroup={"podGroupName": "train"},
    )
    pods = index()
    found = pods.unexamined(pods.request(decode(new)))
    assert found == (
        Unexamined("pod affinity", (ZONE,)),
        Unexamined("volumes", ("data-0", "inline")),
        Unexamined("resource claims", ("gpu",)),
        Unexamined("scheduling group", ("train",)),
    )
    assert pods.unexamined(pods.request(decode(pod(**spreads(spread()), **port(80))))) == ()


def test_a_term_about_labels_of_namespaces_needs_them() -> None:
    existing = [pod(node="a1", namespace="other", **apart(term(HOST, namespaceSelector=SELECTS_TEAM)))]
    pods = index(existing=existing)
    assert pods.unexamined(pods.request(decode(pod()))) == (Unexamined("pod affinity", (HOST,)),)
    assert refused(pods, pod()) == {}
    labels = {"default": {"team": "red"}, "other": {"team": "red"}}
    pods = index(existing=existing, labels_of=labels.get)
    assert pods.unexamined(pods.request(decode(pod()))) == ()
    second = pod(namespace="third", **apart(term(HOST, namespaceSelector=SELECTS_TEAM)))
    assert refused(pods, pod()) == {"a1": EXISTING}
    assert refused(pods, second) == {"a1": ANTI_AFFINITY}
    labels |= {"default": {}, "other": {}}
    pods.namespaces_changed()
    assert refused(pods, pod()) == {}
    assert refused(pods, second) == {}


def test_default_constraints_of_kube_scheduler_are_not_examined() -> None:
    pods = index(has_default_spreads=True)
    assert pods.unexamined(pods.request(decode(pod()))) == (Unexamined("topology spread"),)
    assert pods.unexamined(pods.request(decode(pod(**spreads(spread()))))) == ()


def test_large_pods_are_not_kept_and_not_examined() -> None:
    many = [term(f"example.com/{number:060}") for number in range(LARGEST_REQUEST // 60)]
    large = pod(**apart(*many))
    pods = index(existing=[pod(node="a1", **apart(*many), labels={"app": "web"})])
    (kind,) = pods._counted["default"]
    assert len(kind.key) < LARGEST_KIND and not kind.anti_affinity
    request = pods.request(decode(large))
    assert not request.is_constrained
    assert [item.kind for item in pods.unexamined(request)] == ["pod affinity", "topology spread"]


def test_what_is_shared_goes_with_its_last_pod() -> None:
    pods = index(existing=[pod(node="a1", **apart(term()), **port(80)) for _ in range(3)])
    assert len(pods._kinds) == 1
    assert refused(pods, pod(**port(80), **apart(term()))).keys() == {"a1", "a2"}
    for number in range(3):
        pods.drop(f"existing-{number}")
    assert not pods._kinds and not pods._counted and not pods._with_ports and not pods._terms._buckets
    assert all(not tally.kinds and not tally.counts.any() for tally in pods._tallies.values())


def test_counts_are_bounded() -> None:
    pods = index(existing=[pod(node="a1")])
    for number in range(2 * MOST_TALLIES):
        selector = {"matchLabels": {"app": "db", "number": str(number)}}
        assert refused(pods, pod(**apart(term(selector=selector)))) == {}
    assert len(pods._tallies) == MOST_TALLIES
    # What was forgotten is counted anew.
    pods.put(decode(pod("p", "b1", labels={"app": "db", "number": "0"})))
    assert refused(pods, pod(**apart(term(selector={"matchLabels": {"number": "0"}})))) == {"b1": ANTI_AFFINITY}


def test_a_batch_of_one_shape_looks_at_every_kind_of_pod_once(monkeypatch: pytest.MonkeyPatch) -> None:
    existing = [pod(node="a1", labels={"app": "db", "number": str(number)}) for number in range(100)]
    pods, looks, matches = index(existing=existing), Counter[str](), LabelSelector.matches

    def counted(selector: LabelSelector, labels: dict[str, str]) -> bool:
        looks["all"] += 1
        return matches(selector, labels)

    monkeypatch.setattr(LabelSelector, "matches", counted)
    shape = spreads(spread(skew=200)) | apart(term(HOST, selector=WEB))
    for number in range(50):
        pods.put(decode(pod(f"new-{number}", labels={"app": "web"}, **shape)))
        request = pods.request_of(f"new-{number}")
        assert request is not None
        pods.verdicts(request, list(ZONES))
        pods.place(f"new-{number}", "b1")
    # Two counts of a hundred kinds, then the pod itself for either constraint and for the term of the pods before.
    assert 200 <= looks["all"] < 200 + 50 * 4


def test_nodes_may_become_many_between_questions() -> None:
    known = Nodes()
    pods = InterPodIndex(known)
    names = [f"n{number}" for number in range(200)]
    request = pods.request(decode(pod(**apart(term(HOST)), **spreads(spread(HOST)))))
    assert pods.verdicts(request, names).words() == {NO_NODE.words: 200}
    for name in names:
        pods.put(decode(pod(f"on-{name}", name)))
        apply(known, {"metadata": {"name": name, "labels": {HOST: name}}, "spec": {}})
    assert pods.verdicts(request, names).words() == {ANTI_AFFINITY: 200}
    pods.drop("on-n199")
    # One pod a node, and none on the last.
    assert pods.verdicts(request, names).allowed() == ["n199"]
    assert pods.verdicts(request, names).words() == {SPREAD: 199}


def test_rows_of_nodes_are_used_again() -> None:
    known = Nodes()
    pods = InterPodIndex(known)
    for number in range(300):
        apply(known, {"metadata": {"name": f"n{number}", "labels": {HOST: f"n{number}"}}, "spec": {}})
        pods.put(decode(pod("p", f"n{number}")))
        verdicts = pods.verdicts(pods.request(decode(pod(**apart(term(HOST))))), [f"n{number}", f"n{number - 1}"])
        assert verdicts.codes.tolist() == [1, -1]
        apply(known, {"metadata": {"name": f"n{number}"}, "spec": {}}, "DELETED")
    assert len(pods.rows._names) < 5
    assert pods.rows.domains(HOST).size <= 2 * pods.rows.capacity

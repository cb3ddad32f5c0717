"""A report may list a pod that the service only expects: the answer to its Binding was lost, and the watch is late."""

from __future__ import annotations

from scheduling import Service, decoded, exact, kubelet, pod


def expecting(name: str = "early") -> Service:
    """Returns a service that expects a pod of two CPUs on node n1."""
    service = Service()
    service.report(exact(kubelet()))
    service.reserve(pod(name))
    return service


def test_a_pod_that_is_expected_and_listed_is_there_once() -> None:
    service, node = expecting(), kubelet()
    assert service.free("n1") == [1, 4]
    assert node.admit(decoded(pod("early"))).admitted
    service.report(exact(node, version="2"))
    assert service.free("n1") == [1, 4]
    assert service.fits(pod("next", "4"), "n1") == ["n1"]
    # Nothing is in its own way.
    assert service.fits(pod("early"), "n1") == ["n1"]
    service.put(pod("early", node="n1"))
    assert service.free("n1") == [1, 4]


def test_a_pod_that_is_expected_lies_where_it_is_listed() -> None:
    service, node = expecting(), kubelet()
    first = decoded(pod("first", "3"))
    assert node.admit(first).admitted
    assert node.admit(decoded(pod("early"))).admitted
    node.remove(first.metadata.uid)
    service.report(exact(node, version="2"))
    assert service.free("n1") == [3, 2]


def test_what_an_ended_pod_of_the_name_has_is_not_that_of_the_expected_pod() -> None:
    service, node = Service(), kubelet()
    old = pod("early", uid="uid-old", phase="Running", node="n1")
    assert node.admit(decoded(old)).admitted
    service.put(old)
    service.report(exact(node, name_of=lambda uid: ("default", "early")))
    service.ledger.drop_pod("uid-old")
    service.reserve(pod("early", "3"))
    service.report(exact(node, version="2", name_of=lambda uid: ("default", "early")))
    assert service.free("n1") == [0, 4]

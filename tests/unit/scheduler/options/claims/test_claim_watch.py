"""Lists and events of ResourceSlices, ResourceClaims and DeviceClasses, as the reflectors bring them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from claim_objects import DRIVER, claim, device_slice, template
from scheduling import NoApi
from topowise.kube.reflector import Reflector
from topowise_scheduler.options.claims import watch as claim_watch
from topowise_scheduler.options.claims.ledger import Claims


def sources(claims: Claims) -> dict[str, Reflector[Any]]:
    return {source._path.rpartition("/")[2]: source for source in claim_watch.reflectors(NoApi(), claims)}


def bring(source: Reflector[Any], *documents: dict[str, Any]) -> None:
    steps = source._consumer.replace([source._decode(msgspec.json.encode(document)) for document in documents])
    list(steps or ())


def test_a_list_of_claims_leaves_templates_and_the_other_way_round() -> None:
    claims = Claims([DRIVER])
    by_resource = sources(claims)
    bring(by_resource["resourceclaims"], claim("a"))
    bring(by_resource["resourceclaimtemplates"], template("a"), template("b"))
    assert sorted(claims.keys) == ["default/a", "default/a/", "default/b/"]
    bring(by_resource["resourceclaims"])
    assert sorted(claims.keys) == ["default/a/", "default/b/"]
    bring(by_resource["resourceclaims"], claim("a"))
    bring(by_resource["resourceclaimtemplates"])
    assert sorted(claims.keys) == ["default/a"]
    assert "resourceclaimtemplates" not in sources(Claims()), "kube-scheduler allocates all devices"


def names(claims: Claims) -> tuple[Iterable[str], Iterable[str], Iterable[str]]:
    return sorted(claims.slices), sorted(claims.keys), sorted(claims.classes)


def test_after_a_list_there_is_what_it_has() -> None:
    claims = Claims()
    by_resource = sources(claims)
    bring(by_resource["resourceslices"], device_slice("n1", (0,)), device_slice("n2", (0,)))
    bring(by_resource["resourceclaims"], claim("a"), claim("b"))
    bring(by_resource["deviceclasses"], {"metadata": {"name": "gpu"}})
    assert names(claims) == ([f"n1-{DRIVER}", f"n2-{DRIVER}"], ["default/a", "default/b"], ["gpu"])
    # A bind has read a claim that was deleted before the next list.
    claims.put_claim(claim_watch.decode_claim(msgspec.json.encode(claim("read"))))
    bring(by_resource["resourceslices"], device_slice("n2", (0,)))
    bring(by_resource["resourceclaims"], claim("b"))
    bring(by_resource["deviceclasses"])
    assert names(claims) == ([f"n2-{DRIVER}"], ["default/b"], [])


def test_events_add_change_and_delete() -> None:
    claims = Claims([DRIVER])
    by_resource = sources(claims)
    documents = {
        "resourceclaimtemplates": template("a"),
        "resourceslices": device_slice("n1", (0,)),
        "resourceclaims": claim("a"),
        "deviceclasses": {"metadata": {"name": "gpu"}},
    }
    for event in ("ADDED", "MODIFIED", "DELETED"):
        for resource, document in documents.items():
            source = by_resource[resource]
            source._consumer.apply(event, source._decode(msgspec.json.encode(document)))
        assert any(names(claims)) == (event != "DELETED")
    assert claims.bytes == 0


@pytest.mark.parametrize("resource", ["resourceslices", "resourceclaims", "resourceclaimtemplates", "deviceclasses"])
def test_an_object_that_is_none_is_left_to_the_reflector(resource: str) -> None:
    with pytest.raises(msgspec.DecodeError, match="expected an object of resource"):
        sources(Claims([DRIVER]))[resource]._decode(b'{"metadata": 7}')

"""An object that the API server would not take is made smaller in a fixed order, or refused with clear words."""

from __future__ import annotations

import msgspec

from topowise import attributes, nrt, numaplacement
from topowise_exporter.publish import size_limit

ALL = (
    numaplacement.METADATA_ATTRIBUTE,
    attributes.HOLDINGS,
    attributes.DEVICES,
    attributes.CORES,
    attributes.TOPOLOGY_MANAGER_POLICY,
)


def topology(**bytes_of: int) -> nrt.NodeResourceTopology:
    zone = nrt.Zone(
        "node-0",
        "Node",
        attributes=(
            nrt.Attribute(numaplacement.VECTOR_ATTRIBUTE, "x" * bytes_of.get("vector", 1)),
            nrt.Attribute(attributes.ZONE_CPUS, "0-3"),
        ),
        resources=(nrt.Resource("cpu", "4", "4", "4"),),
    )
    size = bytes_of.get("holdings", 1)
    return nrt.new(
        "n", [zone], (nrt.Attribute(name, "x" * size if name == attributes.HOLDINGS else "x") for name in ALL)
    )


def names(topology: nrt.NodeResourceTopology) -> set[str]:
    zone = (topology.zones or ())[0]
    return {attribute.name for attribute in (*(topology.attributes or ()), *(zone.attributes or ()))}


def test_what_fits_stays_as_it_is() -> None:
    whole = topology()
    fitted = size_limit.fit(whole)
    assert fitted.topology is whole
    assert not fitted.left_out


def test_vectors_are_dropped_before_holdings() -> None:
    fitted = size_limit.fit(topology(vector=size_limit.LIMIT))
    assert fitted.left_out == (numaplacement.METADATA_ATTRIBUTE, numaplacement.VECTOR_ATTRIBUTE)
    assert attributes.HOLDINGS in names(fitted.topology)
    assert fitted.bytes == len(msgspec.json.encode(fitted.topology)) <= size_limit.LIMIT


def test_amounts_and_policies_stay_when_holdings_are_dropped() -> None:
    fitted = size_limit.fit(topology(holdings=size_limit.LIMIT))
    assert names(fitted.topology) == {attributes.CORES, attributes.TOPOLOGY_MANAGER_POLICY, attributes.ZONE_CPUS}
    assert (fitted.topology.zones or ())[0].resources == (topology().zones or ())[0].resources
    shown = size_limit.warning(fitted, size_limit.LIMIT)
    assert shown.startswith("at most 448Ki can be written, left out: ")
    assert attributes.HOLDINGS in shown


def test_what_cannot_be_made_to_fit_says_so() -> None:
    fitted = size_limit.fit(topology(), limit=100)
    assert fitted.bytes > 100
    assert "without any of" in size_limit.warning(fitted, 100)

"""numaplacement has upstream's known answers, survives a round trip, and damage is an error that names the text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise import numaplacement
from topowise.errors import ParseError
from topowise.numaplacement import Container, Holdings, PlacementError

TWO_NODES = {0: 0, 1: 0, 2: 1, 3: 1}
ONE_EACH = {("ns1", "pod1", "c"): 0, ("ns1", "pod2", "c"): 1, ("ns1", "pod3", "c"): 0}

names = st.text(alphabet="abcxyz019-", min_size=1, max_size=8)
containers = st.tuples(names, names, names)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([], ""),
        ([0], "!"),
        ([63], "e"),
        ([64], "f!"),
        ([1663], "~e"),
        ([1664], "gf!"),
        ([1, 3, 7, 42], "#$'H"),
        ([0, 4, 8, 10], "!''$"),
        ([100, 108, 116], "fI++"),
        ([2000, 2008], "gk3+"),
    ],
)
def test_offsets_have_upstreams_known_answers(offsets: list[int], text: str) -> None:
    assert numaplacement.encode_offsets(reversed(offsets)) == text
    assert numaplacement.decode_offsets(text) == tuple(offsets)


@pytest.mark.parametrize(
    ("offset", "characters"), [(63, 1), (64, 2), (1663, 2), (1664, 3), (40063, 3), (40064, 4), (1000063, 4)]
)
def test_an_offset_takes_as_many_characters_as_upstreams(offset: int, characters: int) -> None:
    assert len(numaplacement.encode_offsets([offset])) == characters


@given(st.sets(st.integers(0, (1 << 31) - 1)))
def test_offsets_survive_the_round_trip(offsets: set[int]) -> None:
    text = numaplacement.encode_offsets(offsets)
    assert numaplacement.decode_offsets(text) == tuple(sorted(offsets))
    assert all("!" <= character <= "~" and character not in '"&<>\\' for character in text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#$&", "without '&'"),
        ("# $", "without ' '"),
        ("#é", r"without '\\xe9'"),
        ("#f", "cut off"),
        ("~" * 100_000 + "!", "offsets up to"),
        ("~~~~e" * 1000, "offsets up to"),
    ],
)
def test_a_damaged_vector_is_an_error_that_names_it(text: str, problem: str) -> None:
    with pytest.raises(ParseError, match=problem) as caught:
        numaplacement.decode_offsets(text)
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("container", "expected"),
    [(("", "", ""), 11145182160106660097), (("ns", "pod", "cnt"), 9468815510407277218)],
)
def test_container_hashes_have_upstreams_known_answers(container: Container, expected: int) -> None:
    assert numaplacement.container_hash(container) == expected


@pytest.mark.parametrize(
    ("placed", "nodes", "metadata", "vectors"),
    [
        (
            {("ns1", f"pod{i}", "cnt1"): 0 for i in (1, 2, 3)} | {("ns2", "pod1", "cnt1"): 1},
            (0, 1),
            "cc=4::nn=2::bn=0",
            {1: "#"},
        ),
        ({}, (0, 1), "cc=0::nn=2::bn=0", {}),
        # Of equally busy nodes the lowest is left out.
        ({("n", "p", "a"): 3, ("n", "p", "b"): 1}, range(4), "cc=2::nn=4::bn=1", {3: "!"}),
        # Every node id is below the node count, although ids have gaps.
        ({("n", "p", "a"): 8}, (0, 8), "cc=1::nn=9::bn=8", {}),
    ],
)
def test_placements_have_upstreams_known_answers(
    placed: dict[Container, int], nodes: Sequence[int], metadata: str, vectors: dict[int, str]
) -> None:
    assert numaplacement.encode(placed, nodes=nodes) == (f"npv0v001::ve=leb89::{metadata}", vectors)
    decoded = numaplacement.decode(f"npv0v001::ve=leb89::{metadata}", vectors)
    assert numaplacement.resolve(decoded, list(placed)) == placed


def test_a_node_the_machine_does_not_have_is_not_encoded() -> None:
    with pytest.raises(PlacementError, match=r"NUMA nodes \[2\]"):
        numaplacement.encode({("n", "p", "a"): 2}, nodes=(0, 1))


@given(st.dictionaries(containers, st.sampled_from([0, 1, 5, 8])))
def test_placements_survive_the_round_trip(placed: dict[Container, int]) -> None:
    metadata, vectors = numaplacement.encode(placed, nodes=(0, 1, 5, 8))
    decoded = numaplacement.decode(metadata, vectors)
    assert sorted(offset for offsets in decoded.values() for offset in offsets) == list(range(len(placed)))
    assert numaplacement.resolve(decoded, sorted(placed, reverse=True)) == placed


def test_a_reader_with_other_containers_gets_an_error() -> None:
    decoded = numaplacement.decode(*numaplacement.encode(ONE_EACH, nodes=(0, 1)))
    with pytest.raises(ParseError, match=r"'3 containers': expected 2, which this reader knows"):
        numaplacement.resolve(decoded, list(ONE_EACH)[:2])
    # Fields may come in any order.
    read = numaplacement.decode_metadata("npv0v001::bn=1::cc=3::ve=leb89::nn=2")
    assert read == numaplacement.VectorMetadata(3, 2, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "npv0v001",
        "npv1v001::ve=leb89::cc=1::nn=2::bn=0",
        "npv0v999::ve=leb89::cc=1::nn=2::bn=0",
        "npv0v001ve=leb89::cc=1::nn=2::bn=0",
        "npv0v001::cc=1::nn=2::bn=0",
        "npv0v001::ve=plain::cc=1::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=1::nn=2::bn=0::xx=0",
        "npv0v001::ve=leb89::cc1::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=::nn=2::bn=0",
        "npv0v001::ve=leb89::=1::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=abc::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=1_0::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=٣::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=-1::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=999999999::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=" + "9" * 5000 + "::nn=2::bn=0",
        "npv0v001::ve=leb89::cc=0::nn=0::bn=0",
        "npv0v001::ve=leb89::cc=1::nn=2::bn=2",
    ],
)
def test_foreign_or_damaged_metadata_is_an_error_that_names_it(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        numaplacement.decode_metadata(text)
    assert caught.value.text == text


@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param({0: "!"}, id="of the busiest node"),
        pytest.param({3: "!"}, id="of a node past the count"),
        pytest.param({-1: "!"}, id="of no node"),
        pytest.param({1: "'"}, id="offset past the containers"),
        pytest.param({1: "!!"}, id="an offset twice in one"),
        pytest.param({1: "!", 2: "!"}, id="an offset in two"),
    ],
)
def test_vectors_that_do_not_fit_the_metadata_are_an_error(vectors: dict[int, str]) -> None:
    with pytest.raises(ParseError):
        numaplacement.decode("npv0v001::ve=leb89::cc=4::nn=3::bn=0", vectors)


@given(st.text() | st.text(alphabet="!#~f"), st.dictionaries(st.integers(), st.text(alphabet='!#~ef& "'), max_size=3))
def test_damage_is_never_more_than_a_parse_error(text: str, vectors: dict[int, str]) -> None:
    for metadata in (text, f"npv0v001::{text}", "npv0v001::ve=leb89::cc=5::nn=3::bn=1"):
        try:
            decoded = numaplacement.decode(metadata, vectors)
        except ParseError as exc:
            assert exc.text in (metadata, *vectors.values())
        else:
            assert sum(map(len, decoded.values())) == 5


@pytest.mark.parametrize(
    ("holdings", "node"),
    [
        pytest.param(Holdings(cpus=(2, 3), devices=((0,),), memory=((0,),)), 1, id="of the CPUs"),
        pytest.param(Holdings(devices=((), (0, 1), (1,)), memory=((0,),)), 1, id="of the first device with one node"),
        pytest.param(Holdings(devices=((),), memory=((0,),)), 0, id="of the memory"),
        pytest.param(Holdings(devices=((0, 1),), memory=((1,),)), 1, id="of the memory, between two devices"),
        pytest.param(Holdings(devices=((),), memory=((),)), None, id="of nothing"),
        pytest.param(Holdings(), None, id="of an empty hand"),
    ],
)
def test_a_container_is_on_the_node_of_its_cpus_else_devices_else_memory(holdings: Holdings, node: int | None) -> None:
    assert numaplacement.affinity(holdings, TWO_NODES) == node


@pytest.mark.parametrize(
    ("holdings", "problem"),
    [
        (Holdings(cpus=(1, 2)), r"CPUs are on NUMA nodes \[0, 1\]"),
        (Holdings(devices=((0,), (1,))), r"devices are on NUMA nodes \[0, 1\]"),
        (Holdings(memory=((0, 1),)), "near more than one NUMA node"),
        (Holdings(cpus=(9,)), "CPU 9 is on no known NUMA node"),
    ],
)
def test_a_container_on_several_nodes_cannot_be_encoded(holdings: Holdings, problem: str) -> None:
    with pytest.raises(PlacementError, match=problem):
        numaplacement.affinity(holdings, TWO_NODES)


def test_the_container_that_cannot_be_encoded_is_named() -> None:
    holdings = {("n", "p", "a"): Holdings(cpus=(2,)), ("n", "p", "shared"): Holdings()}
    assert numaplacement.placements(holdings, TWO_NODES) == {("n", "p", "a"): 1}
    with pytest.raises(PlacementError, match="container n/p/wide: its CPUs"):
        numaplacement.placements({("n", "p", "wide"): Holdings(cpus=(0, 2))}, TWO_NODES)

"""Codecs of our own attributes: what is written is read back, the same for the same content, and damage is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topowise import attributes
from topowise.attributes import confirmation, cores, devices, holdings
from topowise.attributes.cores import Core
from topowise.attributes.devices import Device
from topowise.attributes.holdings import Block, Container, Pod
from topowise.errors import ParseError


def test_cores_of_a_regular_socket_travel_together() -> None:
    regular = [Core(0, 0, (cpu, cpu + 64)) for cpu in range(16)] + [
        Core(1, 1, (cpu, cpu + 64)) for cpu in range(16, 32)
    ]
    assert cores.write(regular) == "0:0:0-15/64-79;1:1:16-31/80-95"
    assert cores.write(reversed(regular)) == cores.write(regular)


def test_cores_of_different_widths_and_without_l3_are_kept_apart() -> None:
    hybrid = [Core(0, None, (0, 1)), Core(0, None, (2, 3)), Core(0, None, (4,)), Core(0, None, (5,))]
    assert cores.write(hybrid) == "0::0,2/1,3;0::4-5"
    assert cores.read("0::0,2/1,3;0::4-5") == tuple(hybrid)


def test_threads_that_cross_travel_alone() -> None:
    crossed = (Core(0, 0, (0, 9)), Core(0, 0, (1, 8)))
    assert cores.write(crossed) == "0:0:0/9;0:0:1/8"
    assert cores.read(cores.write(crossed)) == crossed


@st.composite
def some_cores(draw: st.DrawFn) -> list[Core]:
    ids = draw(st.lists(st.integers(0, 4000), unique=True, max_size=40))
    core_list = []
    while ids:
        width = min(len(ids), draw(st.integers(1, 3)))
        threads, ids = ids[:width], ids[width:]
        uncore = draw(st.none() | st.integers(0, 3))
        core_list.append(Core(draw(st.integers(-1, 2)), uncore, tuple(sorted(threads))))
    return core_list


@given(some_cores())
def test_any_cores_are_read_back(core_list: list[Core]) -> None:
    assert list(cores.read(cores.write(core_list))) == sorted(core_list, key=lambda core: core.threads)


@pytest.mark.parametrize("text", ["0", "0:0", "a:0:1", "0:0:1-2/3", "0:0:x", "0:0:0:0", "0:b:1"])
def test_damaged_cores_are_named(text: str) -> None:
    with pytest.raises(ParseError, match="cores"):
        cores.read(text)


def test_devices_are_grouped_by_resource_and_nodes() -> None:
    written = (Device("gpu", "b", (0,)), Device("gpu", "a", (0,)), Device("gpu", "c", (0, 1)), Device("nic", "d", ()))
    text = devices.write(written)
    assert text == '{"gpu":{"0":["a","b"],"0-1":["c"]},"nic":{"":["d"]}}'
    assert devices.read(text) == tuple(sorted(written))


def test_holdings_are_read_back() -> None:
    written = (
        Pod("a", "p", (Container("c", "1-3", (Block("memory", "0", 5),), {"gpu": ("x",)}), Container("d"))),
        Pod("", "some-uid", (Container("init", "7"),)),
    )
    text = holdings.write(written)
    assert holdings.read(text) == (written[1], written[0])
    assert holdings.read(text)[1].containers[0].cpu_ids() == {1, 2, 3}


@pytest.mark.parametrize("text", ["", "{", "[]x", '{"a":1}', '{"gpu":["a"]}', "5"])
def test_damaged_json_is_named(text: str) -> None:
    with pytest.raises(ParseError, match="devices"):
        devices.read(text)
    with pytest.raises(ParseError, match="holdings"):
        holdings.read(text)


def test_pods_that_are_being_admitted_are_read_back() -> None:
    text = confirmation.write_pods([("b", "p"), ("a", "q"), ("b", "p")])
    assert text == "a/q,b/p"
    assert confirmation.read_pods({attributes.ADMITTING: text}) == {("a", "q"), ("b", "p")}
    assert confirmation.read_pods({}) == frozenset()


def test_reasons_to_doubt_an_object_are_read_back_sorted() -> None:
    text = confirmation.write_reasons(
        [confirmation.PODS, confirmation.device("example.com/nic"), confirmation.CPU_MANAGER]
    )
    assert text == "cpu-manager,device:example.com/nic,pods"
    assert confirmation.read_reasons({attributes.UNCONFIRMED: text}) == (
        "cpu-manager",
        "device:example.com/nic",
        "pods",
    )
    assert confirmation.read_reasons({}) == ()


def test_doubts_stay_short_however_many_there_are() -> None:
    pods = [("ns", f"pod-{number:05}") for number in range(10_000)]
    named = {attributes.ADMITTING: confirmation.write_pods(pods), attributes.UNCONFIRMED: "x" * 1_000_000}
    assert confirmation.read_pods(named) == set(pods[: confirmation.MOST_PODS])
    assert [len(reason) for reason in confirmation.read_reasons(named)] == [300]
    named = {name: ",".join(f"a/{number}" for number in range(10_000)) for name in named}
    assert len(confirmation.read_pods(named)) == confirmation.MOST_PODS
    assert len(confirmation.read_reasons(named)) == confirmation.MOST_REASONS


@pytest.mark.parametrize("text", ["", ",", "/", "pod", "ns/", "/pod", ",,pod,"])
def test_what_is_no_name_of_a_pod_is_left_out(text: str) -> None:
    assert confirmation.read_pods({attributes.ADMITTING: text + ",ns/p"}) == {("ns", "p")}

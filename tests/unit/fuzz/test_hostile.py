"""Expensive texts: short texts that name much, deep texts, and texts whose cost grows with the square of length."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import msgspec
import pytest

from fuzzing import hold
from parsers import Parser, parsers
from topowise import attributes, cpuset, documents
from topowise.errors import ParseError
from topowise_scheduler.report import synthetic_machine

SIZE = 100_000
# Of YAML, every node of which takes PyYAML some microseconds.
HALF = SIZE // 2
MIB = 1 << 20


def filled(piece: str) -> bytes:
    return (piece * (SIZE // len(piece) + 1))[:SIZE].encode()


def halved(piece: str) -> bytes:
    return filled(piece)[:HALF]


def laughing(line: str) -> bytes:
    """A collection of nine aliases of a collection of nine aliases, ten times; `line` makes a line of two names."""
    names = "abcdefghijk"
    lines = [line.format(new=new, old=",".join([f"*{old}"] * 9)) for old, new in pairwise(names)]
    return ("a: &a {x: 1}\n" + "".join(lines)).encode()


JSON = [
    b"[" * SIZE,
    b'{"a":' * (SIZE // 5),
    b'{"Pod":' * (SIZE // 7),
    b'{"metadata":' * (SIZE // 12),
    b'{"kubeletconfig":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"kubeletconfig":{"featureGates":' + b'{"a":' * 700 + b"1" + b"}" * 702,
    b"9" * SIZE,
    b"1e" + b"9" * SIZE,
    b'{"a":' + b"9" * SIZE + b"}",
    b'{"' + b"a" * SIZE + b'":1}',
    b"{" + b",".join(b'"k%d":1' % number for number in range(SIZE // 11)) + b"}",
    filled("[[],"),
]
YAML = [
    laughing("{new}: &{new} [{old}]\n"),
    laughing("{new}: &{new} {{<<: [{old}]}}\n"),
    b"a: &a [*a]\n",
    b"&a {maxPods: 1, featureGates: *a}\n",
    b"a: " + b"[" * HALF,
    halved("- "),
    halved("? "),
    b"{a: " * (HALF // 4),
    halved("- - - -\n- "),
    halved("a: &x\n"),
    b"maxPods: " + b"9" * HALF,
    b"maxPods: 0x" + b"f" * HALF,
    b"maxPods: " + b"1:" * (HALF // 2) + b"1",
    b"maxPods: !!int " + b"1:" * (HALF // 2) + b"1",
    b"maxPods: !!float '" + b"1:" * (HALF // 2) + b"1'",
    b"a: !!binary " + halved("A"),
    b"a: !!timestamp x",
    b"a: !!python/object/apply:os.system [true]",
    b"!!omap x",
    filled('"\\u0041'),
]
LISTS = [
    b"0-999999999",
    b"0-8191" + b",0-8191" * (SIZE // 7),
    filled("1,3,5,7,"),
    filled("ffffffff,"),
    filled(","),
    filled("1"),
    b"1e999999999",
    b"1e-999999999",
    b"1" * 99 + b"e999",
    b"." + b"0" * SIZE,
    b"0:0:0-8191;" * (SIZE // 11),
    b"0:0:" + b"0-8191/" * (SIZE // 7) + b"0",
    filled("0:0:0;"),
    b"9" * 5000 + b":0:0",
    b'{"gpu":{' + b",".join(b'"%d-8191":["g%d"]' % (at, at) for at in range(5000)) + b"}}",
    b'{"policyName":"static","defaultCpuSet":"","entries":{"u":{%s}}}'
    % b",".join(b'"c%d":"0-8191"' % at for at in range(5000)),
    b'{"policyName":"Static","machineState":{"%s":{}}}' % (b"9" * 5000),
    b"npv0v001::ve=leb89::cc=999999999::nn=2::bn=0 !",
    b"npv0v001::ve=leb89::cc=1048576::nn=2::bn=0 !",
    b"npv0v001::ve=leb89::cc=16384::nn=2::bn=0 " + filled('"'),
    filled("npv0v001::cc=1::"),
    filled("1m"),
    b"5" * 19 + b"%",
    filled("%"),
]
WIRE = [
    b"\xff" * SIZE,
    b"\x0a\x01" * (SIZE // 2),
    b"\x0a\x00" * (SIZE // 2),
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\n\x02\n\x00",
]


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.name)
def test_an_expensive_text_is_refused_or_read_at_once(parser: Parser) -> None:
    for text in (*JSON, *YAML, *LISTS, *WIRE):
        hold(parser, text)


def zone(at: int, *resources: tuple[str, str], **named: str) -> dict[str, object]:
    return {
        "name": f"node-{at}",
        "type": "Node",
        "attributes": [
            {"name": f"topowise.io/{name.replace('_', '-')}", "value": text} for name, text in named.items()
        ],
        "resources": [
            {"name": name, **dict.fromkeys(("capacity", "allocatable", "available"), amount)}
            for name, amount in resources
        ],
    }


def topology(zones: list[dict[str, object]], **named: str) -> bytes:
    listed = [{"name": name, "value": text} for name, text in named.items()]
    return msgspec.json.encode({"metadata": {"name": "n1"}, "attributes": listed, "zones": zones})


SINGLE = {"topologyManagerPolicy": "single-numa-node"}
OURS = {
    attributes.KUBELET_CONFIGURATION: '{"cpuManagerPolicy":"static","memoryManagerPolicy":"Static"}',
    attributes.HOLDINGS: "[]",
}
REPORTS = {
    "many zones": topology([zone(at, ("cpu", "4096"), ("memory", "1Gi")) for at in range(400)], **SINGLE),
    "many cpus": topology([zone(at, ("cpu", "4096"), ("memory", "1Gi")) for at in range(16)], **SINGLE),
    "many devices": topology([zone(0, *((f"a/r{at}", "4096") for at in range(1000)))], **SINGLE),
    "many sizes of pages": topology(
        [zone(0, ("memory", "1Ti"), *((f"hugepages-{at}Ki", "1Gi") for at in range(1, 1200)))], **SINGLE
    ),
    "huge amounts": topology(
        [zone(at, ("cpu", "1e99"), ("memory", "1e99"), ("hugepages-2Mi", "1e99"), ("a/b", "1e99")) for at in (0, 1)]
    ),
    "huge ids": topology([zone(999_999_990 + at, ("cpu", "8"), ("memory", "1Gi")) for at in range(4)], **SINGLE),
    "wide zones": topology(
        [zone(at, ("memory", "1Gi"), cpus="0-8191", cpus_available="0-8191") for at in range(300)],
        **OURS,
        **{attributes.CORES: "0:0:0-8191"},
    ),
    "wide holdings": topology(
        [zone(0, ("memory", "1Gi"), cpus="0-8191", cpus_available="0-8191")],
        **{
            attributes.KUBELET_CONFIGURATION: '{"cpuManagerPolicy":"static","reservedSystemCPUs":"0"}',
            attributes.CORES: "0:0:0-8191",
            attributes.HOLDINGS: msgspec.json.encode(
                [["a", f"p{at}", [["c", f"{at}-8191", [], {}]]] for at in range(2500)]
            ).decode(),
        },
    ),
    "many resources": topology(
        [zone(0, ("memory", "1Gi"), cpus="0-7", cpus_available="0-7")],
        **OURS,
        **{
            attributes.CORES: "0:0:0-7",
            attributes.DEVICES: msgspec.json.encode({f"a/r{at}": {"0": ["d"]} for at in range(4000)}).decode(),
        },
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_hostile_report_costs_its_reader_little(name: str) -> None:
    (report,) = (parser for parser in parsers() if parser.name == "report")
    assert hold(report, REPORTS[name], seconds=2.0)


@pytest.mark.parametrize(
    ("name", "text", "most"),
    [
        ("cpulist", b"0-8191" + b",0-8191" * 10_000, 8),
        ("cores", b"0:0:" + b"0-8191/" * 12_000 + b"0", 8),
        ("cores", b"0:0:0-8191;" * 9_000, 8),
        ("devices", LISTS[14], 16),
        ("numaplacement", b"npv0v001::ve=leb89::cc=16384::nn=2::bn=0 !", 8),
        ("kubelet file", YAML[0], 8),
        ("report", REPORTS["wide holdings"], 32),
        ("report", REPORTS["many devices"], 32),
        ("report", REPORTS["many cpus"], 32),
    ],
)
def test_a_short_text_takes_little_memory(name: str, text: bytes, most: int) -> None:
    (parser,) = (candidate for candidate in parsers() if candidate.name == name)
    tracemalloc.start()
    try:
        hold(parser, text, seconds=20.0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * MIB, f"{peak // MIB} MiB"


def test_ranges_are_bounded_one_by_one_and_together() -> None:
    assert len(cpuset.parse(f"0-{cpuset.MAX_ID}")) == cpuset.MAX_ID + 1
    assert len(cpuset.parse(f"0-{cpuset.MAX_ID},0-3")) == cpuset.MAX_ID + 1
    for text in (f"0-{cpuset.MAX_ID + 1}", ",".join([f"0-{cpuset.MAX_ID}"] * 3)):
        with pytest.raises(ParseError):
            cpuset.parse(text)


def test_parts_left_out_of_a_large_report_are_named() -> None:
    assert synthetic_machine.modelled_devices(
        [{"a/b": (4096, 1), "cpu": (8, 8)}, {"a/b": (4096, 1), "a/c": (5000, 1)}]
    ) == {"a/b"}
    many = [{f"a/r{at:02}": (4096, 0) for at in range(3)}]
    assert synthetic_machine.modelled_devices(many) == {"a/r00", "a/r01"}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"[" * 65 + b"]" * 65, "nested deeper than 64"),
        (b"a: &a [*a]", "within what it names"),
        (YAML[0], "aliases written out"),
        (b"a: !x 1", "tag"),
        (b"a: 1\n---\nb: 2", "2 documents"),
        (b"a: " + b"1" * 500, "number of 500"),
        (b"a: 0x" + b"f" * 500, "a number of"),
        (b"a: 1." + b"0" * 500, "a number of"),
        (b"\xff\xfe\x00\xd8", "."),
    ],
)
def test_a_document_that_is_too_much_says_why(text: bytes, named: str) -> None:
    with pytest.raises(documents.DocumentError, match=named):
        documents.load(text)


def test_aliases_and_times_are_read_as_kubernetes_reads_them() -> None:
    text = b"base: &base {cpu: 1}\none: *base\ntwo: {<<: *base, memory: 1Gi}\nat: 2024-01-01\n"
    assert documents.load(text) == {
        "base": {"cpu": 1},
        "one": {"cpu": 1},
        "two": {"cpu": 1, "memory": "1Gi"},
        "at": "2024-01-01",
    }
    assert documents.load(b"") is None
    assert documents.load(b'{"a": [1, "x"]}') == documents.load(b"{a: [1, x]}") == {"a": [1, "x"]}
    assert documents.load_all(b"a: 1\n---\n---\nb: 2") == [{"a": 1}, None, {"b": 2}]

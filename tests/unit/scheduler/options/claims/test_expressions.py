"""CEL expressions of selectors, beside the recorded results of the real library."""

from __future__ import annotations

import resource

import msgspec
import pytest

from topowise.errors import ParseError
from topowise_scheduler.options.claims import semver
from topowise_scheduler.options.claims.cel.values import MOST_UNITS
from topowise_scheduler.options.claims.inventory import Inventory, PoolDevice
from topowise_scheduler.options.claims.objects import decode_slice
from topowise_scheduler.options.claims.selectors import Match, Selectors
from topowise_scheduler.options.claims.work import SpentError, Work
from topowise_scheduler.verdicts.kube_scheduler import Node

DRIVER = "gpu.example.com"


def _device(**fields: object) -> PoolDevice:
    spec = {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", **fields}],
    }
    inventory = Inventory()
    inventory.put(decode_slice(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
    (pool,) = inventory.pools(Node("n"))
    return pool.devices[0]


def _match(text: str, work: Work | None = None, **fields: object) -> Match:
    return Selectors().match(text, _device(**fields), work or Work())


def test_an_unreadable_version_fails_every_expression() -> None:
    assert _match("true", attributes={"version": {"version": "1.2"}}) is Match.FAILS


@pytest.mark.parametrize(
    "text",
    [
        "sets.contains([1], [1])",
        'ip("127.0.0.1").isLoopback()',
        'duration("1h") > duration("30m")',
        "device.driver ==",
        "device.driver == 'a' 'b'",
        "devices.driver == 'a'",
        "'open",
        "true || sets.contains([1], [1])",
        "[1, 2].all(index, item, item > index)",
        "{'a': 1, 'b': 2}.map(key, key) == ['a', 'b']",
        "{1: true}[1]",
        "b'bytes' == b'bytes'",
        "has(device)",
        "9223372036854775808 > 0",
        r"device.driver.matches('(a+)+$')",
        "quantity('-') == quantity('0')",
        "[" * 40 + "]" * 40 + " == []",
        "true" + " || true" * 3000,
    ],
)
def test_what_is_beyond_the_modelled_language_is_unknown(text: str) -> None:
    assert _match(text) is Match.UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        # Each doubles a value, or the work on a value, by the number of repetitions.
        "".join(f"cel.bind(a{n}, {f'a{n - 1} + a{n - 1}' if n else '[1, 2, 3, 4]'}, " for n in range(24))
        + "a23.size() > 1"
        + ")" * 24,
        "".join(f"cel.bind(a{n}, {f'a{n - 1} + a{n - 1}' if n else repr('text')}, " for n in range(24))
        + "a23.size() > 1"
        + ")" * 24,
        "".join(f"cel.bind(a{n}, {f'[a{n - 1}, a{n - 1}]' if n else '[1]'}, " for n in range(24))
        + "a23 == a23"
        + ")" * 24,
        f"{[*range(100)]}.all(a, {[*range(100)]}.all(b, a + b >= 0))",
        f"{'a' * 4000!r}.matches('a*a*a*a*b')",
        f"{[*range(300)]}.exists(a, a + 1000 in {[*range(300)]})",
    ],
    ids=["lists", "texts", "nested", "loops", "regular", "in"],
)
def test_an_evaluation_is_bounded(text: str) -> None:
    """Whatever an expression does, its steps are bounded, and so are the elements and characters that it makes."""
    assert len(text) <= 10 * 1024
    work = Work()
    before = _peak()
    assert _match(text, work=work) is Match.UNKNOWN
    assert _peak() - before < 8 << 20
    # Compiling takes a quarter of a unit per character.
    assert Work().left - work.left <= 2 * MOST_UNITS + len(text)


def _peak() -> int:
    """Returns the most memory that the process has had (bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_no_evaluation_begins_without_work() -> None:
    work = Work(1)
    with pytest.raises(SpentError):
        for number in range(10):
            _match(f"{number} == 0 || {number} == 1", work=work)


def test_the_field_for_shares() -> None:
    assert _match("device.allowMultipleAllocations", allowMultipleAllocations=True) is Match.YES
    assert _match("device.allowMultipleAllocations") is Match.NO


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("roots == ['a', 'b']", Match.YES),
        ("roots.includes('b')", Match.YES),
        ("roots.includes('c')", Match.NO),
        ("roots.exists(root, root.startsWith('a'))", Match.YES),
        ("roots.startsWith('a')", Match.FAILS),
        ("roots.indexOf('a') == 0", Match.UNKNOWN),
        ("one.includes(1)", Match.YES),
        ("one.includes('1')", Match.NO),
        ("firmware.includes(semver('1.2.3'))", Match.YES),
        ("numbers[1] == 2 && size(flags) == 1", Match.YES),
    ],
)
def test_attributes_with_lists(text: str, match: Match) -> None:
    attributes = {
        "roots": {"strings": ["a", "b"]},
        "numbers": {"ints": [1, 2]},
        "flags": {"bools": [True]},
        "firmware": {"versions": ["1.2.3"]},
        "one": {"int": 1},
    }
    name = text.partition(".")[0].partition(" ")[0].partition("[")[0]
    text = text.replace("flags", f"device.attributes['{DRIVER}'].flags")
    assert _match(text.replace(name, f"device.attributes['{DRIVER}'].{name}", 1), attributes=attributes) is match


def test_an_expression_is_evaluated_once_per_device() -> None:
    selectors, device, work = Selectors(), _device(), Work()
    assert selectors.match("1 + 1 == 2", device, work) is Match.YES
    left = work.left
    assert left < Work().left
    assert selectors.match("1 + 1 == 2", device, work) is Match.YES
    assert work.left == left


def test_the_results_are_bounded() -> None:
    selectors, device = Selectors(most_bytes=100_000), _device()
    for number in range(500):
        assert selectors.match(f"{number} >= 0", device, Work()) is Match.YES
    assert selectors.bytes <= 100_000


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("1.0.0-alpha", "1.0.0-alpha.1"),
        ("1.0.0-alpha.1", "1.0.0-alpha.beta"),
        ("1.0.0-alpha.beta", "1.0.0-beta"),
        ("1.0.0-beta.2", "1.0.0-beta.11"),
        ("1.0.0-rc.1", "1.0.0"),
        ("1.9.0", "1.10.0"),
    ],
)
def test_versions_are_ordered_as_semver_does(lower: str, higher: str) -> None:
    assert semver.compare(semver.parse(lower), semver.parse(higher)) == -1
    assert semver.compare(semver.parse(higher), semver.parse(lower)) == 1
    assert semver.compare(semver.parse(lower), semver.parse(f"{lower}+build")) == 0


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-01", "1.2.3-", "1.2.3+", "1.2.3 ", "1.2.x"]
)
def test_other_texts_are_no_versions(text: str) -> None:
    with pytest.raises(ParseError):
        semver.parse(text)


def test_short_versions_are_normalized_on_request() -> None:
    assert semver.parse(semver.normalized("v1.02")) == semver.parse("1.2.0")
    assert semver.parse(semver.normalized("001.0.003-rc.1")) == semver.parse("1.0.3-rc.1")
    with pytest.raises(ParseError):
        semver.normalized("1.2-rc")

"""CEL expressions of selectors, beside the recorded results of the real library."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from topowise.errors import ParseError
from topowise_scheduler.claims import semver
from topowise_scheduler.claims.features import features_of
from topowise_scheduler.claims.inventory import Inventory, PoolDevice
from topowise_scheduler.claims.objects import decode_slice
from topowise_scheduler.claims.selectors import Match, Selectors
from topowise_scheduler.kube_scheduler import Node

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
    (pool,) = inventory.pools(Node("n"), features_of(36))
    return pool.devices[0]


def _match(text: str, **fields: object) -> Match:
    return Selectors().match(text, _device(**fields), knows_shares=True)


def test_a_missing_attribute_fails_and_a_missing_domain_is_empty() -> None:
    assert _match(f'device.attributes["{DRIVER}"].numa == 0') is Match.FAILS
    assert _match('has(device.attributes["other"].numa)') is Match.NO
    assert _match('"other" in device.attributes') is Match.NO


def test_a_domain_that_the_expression_computes_is_unknown() -> None:
    assert _match('has(device.attributes["ot" + "her"].numa)') is Match.UNKNOWN
    assert _match('device.attributes[?"ot" + "her"].hasValue()') is Match.UNKNOWN


def test_an_unreadable_version_fails_every_expression() -> None:
    assert _match("true", attributes={"version": {"version": "1.2"}}) is Match.FAILS
    assert _match("true", attributes={"roots": {"strings": ["a"]}}) is Match.FAILS


def test_what_does_not_compile_is_unknown() -> None:
    assert _match("sets.contains([1], [1])") is Match.UNKNOWN
    assert _match("device.driver ==") is Match.UNKNOWN


def test_an_evaluation_that_the_library_breaks_off_is_unknown() -> None:
    text = f'device.attributes["{DRIVER}"].?numa.device.?numa.orValue(0) == 1'
    assert _match(text, attributes={"numa": {"int": 1}}) is Match.UNKNOWN


def test_long_and_nested_expressions_are_not_evaluated() -> None:
    assert _match("true || " + " || ".join(["false"] * 2000)) is Match.UNKNOWN
    numbers = ",".join(map(str, range(100)))
    nested = f"[{numbers}].all(a, [{numbers}].all(b, [{numbers}].all(c, a + b + c >= 0)))"
    assert _match(nested) is Match.UNKNOWN
    assert _match(f"[{numbers}].all(a, a >= 0)") is Match.YES


def test_a_version_compared_with_a_text_is_unknown() -> None:
    text = f'device.attributes["{DRIVER}"].version == "1.2.3"'
    assert _match(text, attributes={"version": {"version": "1.2.3"}}) is Match.UNKNOWN
    assert _match(text, attributes={"version": {"string": "1.2.3"}}) is Match.YES


def test_only_later_gates_give_expressions_the_field_for_shares() -> None:
    device = _device(allowMultipleAllocations=True)
    assert Selectors().match("device.allowMultipleAllocations", device, knows_shares=True) is Match.YES
    assert Selectors().match("device.allowMultipleAllocations", device, knows_shares=False) is Match.FAILS


def test_an_expression_is_evaluated_once_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from topowise_scheduler.claims.expressions import Expression, Input

    evaluated: list[str] = []
    matches = Expression.matches

    def counted(self: Expression, device: Input) -> bool:
        evaluated.append(device.driver)
        return matches(self, device)

    monkeypatch.setattr(Expression, "matches", counted)
    selectors, device = Selectors(), _device()
    for _ in range(3):
        assert selectors.match("true", device, knows_shares=True) is Match.YES
    assert len(evaluated) == 1


def test_the_results_are_bounded() -> None:
    selectors, device = Selectors(most_bytes=100_000), _device()
    for number in range(500):
        assert selectors.match(f"{number} >= 0", device, knows_shares=True) is Match.YES
    assert selectors.bytes <= 100_000


def test_the_library_is_loaded_for_the_first_expression_only() -> None:
    script = (
        "import sys, topowise_scheduler.claims.allocator\n"
        "assert 'cel_expr_python' not in sys.modules and 'google.protobuf.message_factory' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


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

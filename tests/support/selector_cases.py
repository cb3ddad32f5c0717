"""CEL expressions and devices, to compare our evaluation of selectors with kube-scheduler's.

`python tests/support/selector_cases.py generate SEED` prints a case a line; `compare CASES ANSWERS` prints how many of
our results agree.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import decode_slice
from topowise_scheduler.options.claims.selectors import Match, Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node

Case = dict[str, Any]

_A = 'device.attributes["gpu.example.com"]'
_C = 'device.capacity["gpu.example.com"]'
_STD = 'device.attributes["resource.kubernetes.io"]'

EXPRESSIONS = (
    "true",
    "false",
    'device.driver == "gpu.example.com"',
    'device.driver in ["gpu.example.com", "nic.example.com"]',
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    f'{_A}.model == "a100"',
    f'{_A}.model != "a100"',
    f'{_A}["model"] == "a100"',
    f"{_A}.model",
    f"{_A}.healthy",
    f"!{_A}.healthy",
    f"{_A}.numa",
    f"{_A}.numa == 0",
    f"{_A}.numa == 0u",
    f"{_A}.numa == 0.0",
    f'{_A}.numa == "0"',
    f"{_A}.numa < 1",
    f"{_A}.numa < 1.5",
    f'{_A}.numa < "1"',
    f"{_A}.numa + 1 == 1",
    f"{_A}.numa * 2 % 2 == 0",
    f"10 / {_A}.numa > 1",
    f"{_A}.numa > 0 ? {_A}.healthy : true",
    f"{_A}.missing == 1",
    f"{_A}.missing == 1 || true",
    f"true || {_A}.missing == 1",
    f"{_A}.missing == 1 && false",
    f"{_A}.missing == 1 || false",
    f"has({_A}.model)",
    f"has({_A}.missing)",
    f"has({_A}.missing) && {_A}.missing == 1",
    f"!has({_A}.missing)",
    f'"model" in {_A}',
    f'"missing" in {_A}',
    f"size({_A}) > 3",
    f"{_A}.size() >= 0",
    'device.attributes["nope"].x == 1',
    'has(device.attributes["nope"].x)',
    'size(device.attributes["nope"]) == 0',
    'device.attributes["nope"] == {}',
    '"nope" in device.attributes',
    '"gpu.example.com" in device.attributes',
    '"nope" in device.attributes || has(device.attributes["nope"].x)',
    "size(device.attributes) == 2",
    "device.attributes.size() > 0",
    'device.attributes.exists(d, d == "gpu.example.com")',
    'device.attributes.all(d, d != "nope")',
    "device.attributes.exists(d, has(device.attributes[d].numa))",
    "device.attributes[device.driver].numa == 0",
    "has(device.attributes[device.driver].numa)",
    "has(device.capacity[device.driver].memory)",
    'device.attributes["gpu." + "example.com"].numa == 0',
    'has(device.attributes["no" + "pe"].numa)',
    'device.attributes[?"nope"].hasValue()',
    'device.attributes[?"nope"].?x.hasValue()',
    'device.attributes[?"gpu.example.com"].?numa.orValue(7) == 0',
    f"{_A}.?numa.orValue(7) == 0",
    f"{_A}.?missing.orValue(7) == 7",
    f'{_A}[?"missing"].orValue("x") == "x"',
    f"{_A}.?numa.hasValue()",
    f"{_A}.?numa.value() == 0",
    f"{_A}.?missing.value() == 0",
    f"{_A}.?numa.optMap(n, n + 1).orValue(0) == 1",
    f"{_A}.?missing.or({_A}.?numa).orValue(5) == 0",
    f"cel.bind(a, {_A}, a.numa == 0 && a.healthy)",
    "cel.bind(m, device.attributes, m['gpu.example.com'].numa == 0)",
    "cel.bind(m, device.attributes, has(m['nope'].numa))",
    "cel.bind(m, device.attributes, m[?'nope'].hasValue())",
    f'{_A}.model.startsWith("a")',
    f'{_A}.model.endsWith("00")',
    f'{_A}.model.contains("10")',
    f'{_A}.model.matches("^[ah]1.*0$")',
    f'{_A}.model.matches("(")',
    f'{_A}.model.upperAscii() == "A100"',
    f'{_A}.model.lowerAscii() == "a100"',
    f'{_A}.model.charAt(0) == "a"',
    f'{_A}.model.indexOf("1") == 1',
    f'{_A}.model.lastIndexOf("0") == 3',
    f'{_A}.model.substring(1) == "100"',
    f'{_A}.model.substring(0, 9) == "100"',
    f'{_A}.model.replace("a", "h") == "h100"',
    f'{_A}.model.split("1")[0] == "a"',
    f'{_A}.model.trim() == "a100"',
    f"{_A}.model.size() == 4",
    f"size({_A}.model) == 4",
    '["a", "b"].join("-") == "a-b"',
    '"%s-%d".format(["a", 1]) == "a-1"',
    f'{_A}.model + "x" == "a100x"',
    f'{_A}.model < "b"',
    f'{_A}.model > "b" || {_A}.model == "a100"',
    f'string({_A}.numa) == "0"',
    f"int({_A}.model) == 1",
    f"double({_A}.numa) == 0.0",
    f"type({_A}.numa) == int",
    f"type({_A}.model) == string",
    f'{_A}.version == semver("1.2.3")',
    f'{_A}.version == semver("1.2.3+build")',
    f'{_A}.version.isLessThan(semver("2.0.0"))',
    f'{_A}.version.isGreaterThan(semver("1.2.3-rc.1"))',
    f'{_A}.version.compareTo(semver("1.10.0")) < 0',
    f'{_A}.version.compareTo(semver("v1.2", true)) > 0',
    f"{_A}.version.major() == 1 && {_A}.version.minor() >= 2 && {_A}.version.patch() >= 0",
    f'{_A}.version == "1.2.3"',
    f'"1.2.3" == {_A}.version',
    f'{_A}.version != "1.2.3"',
    f'{_A}.?version.orValue("x") == "1.2.3"',
    f'{_A}.?version.orValue(semver("0.0.1")) == semver("1.2.3")',
    f'cel.bind(v, {_A}.version, v == "1.2.3")',
    f'{_A}["version"] == "1.2.3"',
    f"({_A}.version) == {_A}.model",
    f'{_A}.version in ["1.2.3"]',
    f'{_A}.version in [semver("1.2.3")]',
    f'{_A}.model == "a100" && {_A}.version.isLessThan(semver("2.0.0"))',
    f'{_A}.numa.isLessThan(semver("2.0.0"))',
    f'{_A}.model.isLessThan(semver("2.0.0"))',
    'isSemver("1.2.3") && !isSemver("v1.2") && isSemver("v1.2", true)',
    'isSemver("1.2.3-alpha.01")',
    'semver("1.0.0-alpha").isLessThan(semver("1.0.0-alpha.1"))',
    'semver("1.0.0-alpha.beta").isLessThan(semver("1.0.0-beta"))',
    'semver("1.0.0-2").isLessThan(semver("1.0.0-11")) && semver("1.0.0-11").isLessThan(semver("1.0.0-a"))',
    'semver("x").major() == 1',
    'semver("01.02.0003", true) == semver("1.2.3")',
    f'{_C}.memory.compareTo(quantity("40Gi")) == 0',
    f'{_C}.memory == quantity("40960Mi")',
    f'{_C}.memory == quantity("40G")',
    f'{_C}.memory != quantity("40Gi")',
    f'{_C}.memory.isGreaterThan(quantity("10Gi"))',
    f'{_C}.memory.isLessThan(quantity("10Gi"))',
    f'quantity("1Gi").isLessThan({_C}.memory)',
    f"{_C}.memory.asInteger() >= 42949672960",
    f"{_C}.memory.isInteger()",
    f"{_C}.memory.asApproximateFloat() > 4.0e10",
    f"sign({_C}.memory) == 1",
    f'{_C}.memory.add(quantity("1Gi")) == quantity("41Gi")',
    f'{_C}.memory.sub(quantity("1Gi")).isGreaterThan(quantity("38Gi"))',
    f"{_C}.memory.sub(1).isLessThan({_C}.memory)",
    f"{_C}.memory.compareTo({_A}.version) == 0",
    f"sign({_C}.missing) == 1",
    f"has({_C}.memory) && !has({_C}.missing)",
    f'sign({_C}.?memory.orValue(quantity("0"))) == 1',
    'has(device.capacity["nope"].x)',
    f"{_C}.memory",
    f"{_C}.share.isInteger()",
    f"{_C}.share.asInteger() == 1",
    f'{_C}.share == quantity("500m")',
    f'{_C}.share == quantity("0.5")',
    'quantity("1e3") == quantity("1k") && quantity("1E3") == quantity("1k")',
    'isQuantity("20Mi") && !isQuantity("20Mo")',
    'sign(quantity("bad")) == 1',
    'quantity("1000m").isInteger()',
    'quantity("1.5").asInteger() == 1',
    'sign(quantity("0.0000000001")) == 1',
    f'{_STD}.pcieRoot == "pci0000:01"',
    f'{_STD}.?pcieRoot.orValue("").startsWith("pci0000")',
    f'{_STD}["pcieRoot"].matches("^pci[0-9]{{4}}:0[0-3]$")',
    f'["a100", "h100"].exists(m, m == {_A}.model)',
    f'["a100", "h100"].all(m, m != {_A}.model)',
    f'["a100", "h100"].exists_one(m, m == {_A}.model)',
    f'["a100", "h100"].filter(m, m == {_A}.model).size() == 1',
    '["a100", "h100"].map(m, m + "x").size() == 2',
    f'{_A}.exists(k, k == "numa")',
    f'{{"a100": 1, "h100": 2}}[{_A}.model] == 1',
    f'{_A}.model in {{"a100": 1}}',
    f"{_A}.numa in [0, 2]",
    f"{_A}.numa in [0.0, 2.0]",
    "device.attributes == device.attributes",
    f"{_A} == {_A}",
    "dyn(1) == 1.0",
    "[1, 2, 3].sum() == 6",
    '"x".find("x") == "x"',
    "sets.contains([1, 2], [1])",
    'ip("127.0.0.1").isLoopback()',
    "// a comment with device.attributes\ntrue",
    f"""{_A}.model == r'a100'""",
    f'''{_A}.model == """a100"""''',
    f"({_A}).numa == 0",
    "(device.attributes)['gpu.example.com'].numa == 0",
    "has((device.attributes)['nope'].numa)",
    f"{_A}.numa == 0 && {_A}.healthy && {_A}.model == 'a100' && {_A}.lane > 3",
    "optional.of(1).hasValue() && !optional.none().hasValue()",
    '"a" + "b" == "ab" && 7 % 4 == 3 && -(-1) == 1',
    "9223372036854775807 + 1 > 0",
    f"{_A}.big + 1 > 0",
    "1 / 0 == 1",
    'timestamp("2026-01-01T00:00:00Z") < timestamp("2027-01-01T00:00:00Z")',
    'duration("1h") > duration("30m")',
)


def _device(random: Random, number: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "numa": {"int": number % 2},
        "model": {"string": random.choice(("a100", "h100", "b200"))},
        "healthy": {"bool": random.random() < 0.5},
        "version": {"version": random.choice(("1.2.3", "1.10.0", "2.0.0-rc.1", "1.2.3+build.5"))},
        "lane": {"int": random.randint(0, 5)},
        "big": {"int": 9223372036854775807},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:0{random.randint(0, 1)}"},
    }
    for name in random.sample(sorted(attributes), random.choice((0, 0, 1, 2, 7))):
        del attributes[name]
    capacity = {"memory": {"value": random.choice(("40Gi", "80Gi", "1Gi"))}, "share": {"value": "500m"}}
    device: dict[str, Any] = {"name": f"gpu-{number}", "attributes": attributes}
    if random.random() < 0.8:
        device["capacity"] = capacity
    if random.random() < 0.3:
        device["allowMultipleAllocations"] = True
    if number == 7:
        attributes["version"] = {"version": "1.2"}
    return device


def cases(seed: int) -> list[Case]:
    """Each expression with eight devices."""
    random = Random(seed)
    devices = [_device(random, number) for number in range(8)]
    features = {"ConsumableCapacity": True}
    return [
        {"features": features, "selector": {"expression": text, "driver": "gpu.example.com", "device": device}}
        for text in EXPRESSIONS
        for device in devices
    ]


def predicted(items: list[Case]) -> list[tuple[Match, str]]:
    """Our results."""
    selectors = Selectors()
    results: list[tuple[Match, str]] = []
    for item in items:
        selector = item["selector"]
        inventory = Inventory()
        spec = {
            "driver": selector["driver"],
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "nodeName": "n",
            "devices": [selector["device"]],
        }
        inventory.put(decode_slice(msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})))
        (pool,) = inventory.pools(Node("n"))
        match = selectors.match(selector["expression"], pool.devices[0], Work())
        is_reason = match in (Match.FAILS, Match.UNKNOWN)
        reason = selectors.reason(selector["expression"], pool.devices[0], Work()) if is_reason else ""
        results.append((match, reason))
    return results


def verdict(answer: dict[str, Any], match: Match) -> str:
    """Returns "equal", "different" or "unknown"."""
    if match is Match.UNKNOWN:
        return "unknown"
    real = Match.FAILS if answer.get("error") else Match.YES if answer.get("match") else Match.NO
    return "equal" if match is real else "different"


def _print(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(arguments: list[str]) -> None:
    if arguments[0] == "generate":
        for item in cases(int(arguments[1])):
            _print(json.dumps(item, separators=(",", ":")))
        return
    items = [json.loads(line) for line in Path(arguments[1]).read_text().splitlines()]
    answers = [json.loads(line)[0] for line in Path(arguments[2]).read_text().splitlines()]
    totals: Counter[str] = Counter()
    shown: set[tuple[str, str]] = set()
    for item, answer, (match, reason) in zip(items, answers, predicted(items), strict=True):
        result = verdict(answer, match)
        totals[result] += 1
        text = item["selector"]["expression"]
        if result != "equal" and (result, text) not in shown:
            shown.add((result, text))
            _print(result, text, "ours:", match.name, reason[:120], "real:", str(answer)[:200])
    _print(dict(totals))


if __name__ == "__main__":
    main(sys.argv[1:])

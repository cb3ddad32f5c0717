"""Random clusters with ResourceClaims, and comparison of our allocation with kube-scheduler's allocator.

`python tests/support/claim_cases.py generate SEED COUNT MINOR` prints cases, a JSON object a line; `compare CASES
ANSWERS` prints how many of our allocations agree. The answers are lists of the distinct results of the real allocator,
which a harness calls several times with shuffled slices.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from topowise.quantity import nano_value
from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.allocator import Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.features import Features, features_of
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import decode_claim, decode_class, decode_slice
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node

Case = dict[str, Any]
Json = dict[str, Any]

_GATES = {
    "AdminAccess": "DRAAdminAccess",
    "ConsumableCapacity": "DRAConsumableCapacity",
    "DeviceBindingAndStatus": "DRADeviceBindingConditions",
    "DeviceTaints": "DRADeviceTaints",
    "PartitionableDevices": "DRAPartitionableDevices",
    "PrioritizedList": "DRAPrioritizedList",
}
_DEFAULTS = {
    34: ("AdminAccess", "PrioritizedList"),
    35: ("AdminAccess", "PrioritizedList"),
    36: tuple(_GATES),
}
_DRIVERS = ("gpu.example.com", "nic.example.com", "fpga.example.org")
_ATTRIBUTES = ("numa", "model", "healthy", "version", "lane")
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def case(random: Random, minor: int) -> Case:
    """A node, the cluster's slices and classes, and the claims of a pod."""
    features = dict.fromkeys(_GATES, False) | dict.fromkeys(_DEFAULTS[minor], True)
    if random.random() < 0.3:
        changeable = {34: ("DeviceTaints", "PrioritizedList", "AdminAccess")}.get(minor)
        changeable = changeable or ("DeviceTaints", "PartitionableDevices", "PrioritizedList", "AdminAccess")
        changeable += ("ConsumableCapacity", "DeviceBindingAndStatus") if minor == 36 else ()
        for name in random.sample(changeable, random.randint(1, 2)):
            features[name] = not features[name]
    drivers = random.sample(_DRIVERS, random.choice((1, 1, 2, 3)))
    slices = [item for driver in drivers for item in _pools(random, driver, features)]
    random.shuffle(slices)
    classes = [_class(random, driver, number) for number, driver in enumerate(drivers * 2)]
    names = [item["metadata"]["name"] for item in classes]
    claims = [_claim(random, f"claim-{index}", names, drivers) for index in range(random.choice((1, 1, 1, 2, 3)))]
    return {
        "minor": minor,
        "features": features,
        "node": {"metadata": {"name": "n1", "labels": {"zone": "a", "kubernetes.io/hostname": "n1"}}},
        "slices": slices,
        "classes": classes,
        "claims": claims,
        "allocated": _allocated(random, slices),
        "shuffles": 1 if features["ConsumableCapacity"] or features["DeviceBindingAndStatus"] else 16,
    }


def _pools(random: Random, driver: str, features: dict[str, bool]) -> list[Json]:
    """The slices of one to three pools of a driver."""
    slices: list[Json] = []
    for number in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.choice(("node", "node", "node", "node", "other", "shared", "selector", "per device", "counters"))
        slices += _slices(random, driver, f"{kind.replace(' ', '-')}-{number}", kind)
        if random.random() < 0.06:
            slices += _slices(
                random, driver, f"{kind.replace(' ', '-')}-{number}", kind, generation=random.choice((0, 0, 2, 2, 1))
            )
    return slices


def _slices(random: Random, driver: str, pool: str, kind: str, generation: int = 1) -> list[Json]:
    prefix = driver.partition(".")[0]
    slices: list[Json] = []
    number = random.choice((1, 1, 1, 2)) if kind != "counters" else random.choice((1, 2))
    counted = _counter_sets(random) if kind == "counters" else []
    first = 0
    for _ in range(number):
        devices = []
        for index in range(first, first + random.randint(2, 8)):
            device = _device(random, f"{prefix}-{index}", counted)
            if kind == "per device":
                device |= random.choice(
                    ({"nodeName": "n1"}, {"nodeName": "n2"}, {"allNodes": True}, _zone("a"), _zone("b"))
                )
            devices.append(device)
        first += len(devices) if random.random() < 0.97 else 0
        where: Json = {
            "node": {"nodeName": "n1"},
            "other": {"nodeName": random.choice(("n1", "n2"))},
            "shared": {"allNodes": True},
            "selector": _zone(random.choice("ab")),
            "per device": {"perDeviceNodeSelection": True},
            "counters": {"nodeName": "n1"} if random.random() < 0.8 else {"allNodes": True},
        }[kind]
        slices.append({"driver": driver, **where, "devices": devices})
    if counted:
        slices.append({"driver": driver, "nodeName": "n1", "sharedCounters": counted})
    count = len(slices) + (random.random() < 0.04)
    names = random.sample(range(1_000_000), len(slices))
    return [
        {
            "metadata": {"name": f"{prefix}-{pool}-g{generation}-{name}"},
            "spec": {**spec, "pool": {"name": pool, "generation": generation, "resourceSliceCount": count}},
        }
        for name, spec in zip(names, slices, strict=True)
    ]


def _zone(zone: str) -> Json:
    expressions = [{"key": "zone", "operator": "In", "values": [zone]}]
    return {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


def _counter_sets(random: Random) -> list[Json]:
    return [
        {
            "name": f"set-{index}",
            "counters": {"memory": {"value": f"{random.choice((4, 8))}Gi"}, "slots": {"value": "4"}},
        }
        for index in range(random.randint(1, 2))
    ]


def _device(random: Random, name: str, counted: list[Json]) -> Json:
    device: Json = {"name": name}
    attributes: Json = {}
    for attribute in _ATTRIBUTES:
        if random.random() < (0.97 if attribute in ("numa", "model") else 0.7):
            attributes[attribute] = _attribute(random, attribute)
    if random.random() < 0.7:
        attributes[_PCIE_ROOT] = {"string": f"pci0000:0{random.randint(0, 2)}"}
    if attributes:
        device["attributes"] = attributes
    if random.random() < 0.8:
        device["capacity"] = {"memory": {"value": random.choice(("10Gi", "40Gi", "80Gi", "40960Mi"))}}
    if counted and random.random() < 0.85:
        device["consumesCounters"] = [
            {
                "counterSet": counter_set["name"],
                "counters": {"memory": {"value": random.choice(("1Gi", "2Gi", "4Gi", "512Mi"))}}
                | ({"slots": {"value": str(random.randint(1, 3))}} if random.random() < 0.5 else {}),
            }
            for counter_set in random.sample(counted, random.randint(1, len(counted)))
        ]
    if random.random() < 0.1:
        device["taints"] = [_taint(random) for _ in range(random.choice((1, 1, 2)))]
    if random.random() < 0.05:
        device |= {"bindsToNode": True, "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    if random.random() < 0.15:
        device["allowMultipleAllocations"] = True
        for capacity in device.get("capacity", {}).values():
            if random.random() < 0.7:
                capacity["requestPolicy"] = _policy(random)
    return device


def _policy(random: Random) -> Json:
    return random.choice(
        (
            {"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}},
            {"default": "2Gi", "validRange": {"min": "1Gi", "max": "8Gi"}},
            {"default": "4Gi", "validValues": ["2Gi", "4Gi", "8Gi"]},
            {"default": "512Mi"},
        )
    )


def _attribute(random: Random, name: str) -> Json:
    return {
        "numa": lambda: {"int": random.randint(0, 1)},
        "model": lambda: {"string": random.choice(("a100", "h100", "b200"))},
        "healthy": lambda: {"bool": random.random() < 0.8},
        "version": lambda: {"version": random.choice(("1.2.3", "1.10.0", "2.0.0-rc.1", "2.0.0"))},
        "lane": lambda: {"int": random.randint(0, 5)},
    }[name]()


def _taint(random: Random) -> Json:
    effect = random.choice(("NoSchedule", "NoExecute", "NoSchedule", "None"))
    return {"key": random.choice(("broken", "old")), "value": random.choice(("", "yes")), "effect": effect}


def _selector(random: Random, driver: str) -> str:
    attribute, capacity = f'device.attributes["{driver}"]', f'device.capacity["{driver}"]'
    lookup = f"device.attributes['{driver}']"
    return random.choice(
        (
            f'{attribute}.model == "{random.choice(("a100", "h100", "b200"))}"',
            f'{attribute}.model in ["a100", "h100"]',
            f'has({attribute}.model) && {attribute}.model != "b200"',
            f"{attribute}.?numa.orValue(-1) == {random.randint(0, 1)}",
            f"!has({attribute}.healthy) || {attribute}.healthy",
            f'has({capacity}.memory) && {capacity}.memory.compareTo(quantity("20Gi")) >= 0',
            f'{capacity}.?memory.orValue(quantity("1Gi")).isGreaterThan(quantity("40Gi"))',
            f'{attribute}.?version.orValue(semver("0.1.0")).isLessThan(semver("2.0.0"))',
            f"cel.bind(a, {attribute}, has(a.lane) && a.lane % 2 == {random.randint(0, 1)})",
            f'{attribute}.?model.orValue("").startsWith("{random.choice("ahb")}")',
            f'{attribute}.?model.orValue("x").matches("^[ah]100$")',
            f'"{_PCIE_ROOT}".contains("pcie") && has({lookup}.numa)',
            'device.attributes["resource.kubernetes.io"].?pcieRoot.orValue("").endsWith("0")',
            f'device.driver == "{driver}"',
            'device.driver.endsWith("example.com")',
            "true",
            f'has(device.attributes["other.example.com"].x) || device.driver == "{driver}"',
            f"{attribute}.numa == 0",
            f'{attribute}.version.compareTo(semver("1.5.0")) < 0',
            f"{capacity}.memory.asInteger() > 20000000000",
            f'["numa", "lane"].exists(k, k in {attribute})',
            "size(device.attributes) > 0",
        )
    )


def _selectors(random: Random, driver: str, probability: float) -> Json:
    if random.random() >= probability:
        return {}
    return {"selectors": [{"cel": {"expression": _selector(random, driver)}} for _ in range(random.choice((1, 1, 2)))]}


def _class(random: Random, driver: str, number: int) -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}] if random.random() < 0.85 else []
    selectors += _selectors(random, driver, 0.15).get("selectors", [])
    return {"metadata": {"name": f"class-{number}"}, "spec": {"selectors": selectors} if selectors else {}}


def _request(random: Random, classes: list[str], drivers: list[str]) -> Json:
    name = random.choice(classes) if random.random() < 0.995 else "class-missing"
    number = int(name.rpartition("-")[2]) if name[-1].isdigit() else 0
    request: Json = {"deviceClassName": name, **_selectors(random, drivers[number % len(drivers)], 0.4)}
    if random.random() < 0.12:
        request["allocationMode"] = "All"
    else:
        request |= {"allocationMode": "ExactCount", "count": random.choice((1, 1, 1, 1, 1, 2, 2, 3, 4, 12))}
    if random.random() < 0.2:
        request["tolerations"] = [
            random.choice(
                (
                    {"key": "broken", "operator": "Exists"},
                    {"operator": "Exists"},
                    {"key": "old", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
                )
            )
        ]
    if random.random() < 0.1:
        request["capacity"] = {
            "requests": {random.choice(("memory", "memory", "bandwidth")): random.choice(("1Gi", "3Gi", "20Gi"))}
        }
    return request


def _claim(random: Random, name: str, classes: list[str], drivers: list[str]) -> Json:
    requests: list[Json] = []
    for index in range(random.choice((1, 1, 2, 2, 3))):
        if random.random() < 0.2:
            subrequests = [
                {"name": f"sub-{number}", **_request(random, classes, drivers)}
                for number in range(random.randint(1, 3))
            ]
            requests.append({"name": f"req-{index}", "firstAvailable": subrequests})
        else:
            request = _request(random, classes, drivers)
            if random.random() < 0.08:
                request["adminAccess"] = random.random() < 0.8
            requests.append({"name": f"req-{index}", "exactly": request})
    spec: Json = {"requests": requests}
    if random.random() < 0.4:
        spec["constraints"] = [_constraint(random, requests, drivers) for _ in range(random.choice((1, 1, 2)))]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}


def _constraint(random: Random, requests: list[Json], drivers: list[str]) -> Json:
    attribute = random.choice((_PCIE_ROOT, f"{drivers[0]}/numa", f"{drivers[0]}/numa", f"{drivers[-1]}/model"))
    kind = "distinctAttribute" if random.random() < 0.2 else "matchAttribute"
    if kind == "distinctAttribute":
        attribute = f"{drivers[0]}/{random.choice(('lane', 'model', 'numa'))}"
    constraint: Json = {kind: attribute}
    if random.random() < 0.5:
        names = [request["name"] for request in requests]
        names += [
            f"{request['name']}/{sub['name']}" for request in requests for sub in request.get("firstAvailable", ())
        ]
        constraint["requests"] = random.sample(names, random.randint(1, min(2, len(names))))
    return constraint


def _allocated(random: Random, slices: list[Json]) -> list[Json]:
    """Claims that have devices of the slices."""
    results: list[Json] = []
    share = random.choice((0, 0, 0.15, 0.4))
    for item in slices:
        spec = item["spec"]
        for device in spec.get("devices", ()):
            if random.random() >= share:
                continue
            result = {
                "request": "req",
                "driver": spec["driver"],
                "pool": spec["pool"]["name"],
                "device": device["name"],
            }
            if random.random() < 0.1:
                result["adminAccess"] = True
            elif device.get("allowMultipleAllocations"):
                result["shareID"] = f"00000000-0000-0000-0000-{len(results):012d}"
                if device.get("capacity"):
                    result["consumedCapacity"] = {"memory": random.choice(("1Gi", "4Gi", "8Gi"))}
            results.append(result)
    return [
        {
            "metadata": {"name": f"allocated-{index}", "namespace": "default"},
            "spec": {"devices": {}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
        for index, result in enumerate(results)
    ]


def features(item: Case) -> Features:
    """The features of a case."""
    return features_of(item["minor"], {_GATES[name]: flag for name, flag in item["features"].items()})


def predicted(item: Case, selectors: Selectors | None = None) -> Allocation | NoFit | Unknown:
    """Our result for a case."""
    encode = msgspec.json.encode
    inventory = Inventory()
    for resource_slice in item["slices"]:
        inventory.put(decode_slice(encode(resource_slice)))
    classes = {one.name: one for one in (decode_class(encode(raw)) for raw in item["classes"])}
    allocated = AllocatedDevices()
    for raw in item["allocated"]:
        allocation = decode_claim(encode(raw)).status.allocation
        assert allocation is not None
        allocated.add(allocation.devices.results or ())
    metadata = item["node"]["metadata"]
    labels = dict(metadata["labels"])
    node = Node(metadata["name"], hostname=labels.pop("kubernetes.io/hostname"), labels=labels)
    claims = [decode_claim(encode(raw)) for raw in item["claims"]]
    return allocate(node, claims, inventory, classes, allocated, features(item), selectors or Selectors(), Work())


def verdict(item: Case, answers: list[Json], ours: Allocation | NoFit | Unknown) -> str:
    """Returns "equal", "different", or "unknown: " with our reason."""
    if isinstance(ours, Unknown):
        return f"unknown: {ours.feature}"
    is_sorted = features(item).is_sorted
    texts = {json.dumps(_normal(answer, is_sorted), sort_keys=True) for answer in answers}
    return "equal" if texts == {json.dumps(_normal(_answer(ours), is_sorted), sort_keys=True)} else "different"


def _answer(ours: Allocation | NoFit) -> Json:
    if isinstance(ours, NoFit):
        return {"fit": False, "error": ours.reason if ours.ends_attempt else ""}
    claims = [
        [
            {
                "request": device.request,
                **device.id._asdict(),
                "admin": device.admin_access,
                "consumed": device.consumed,
            }
            for device in claim
        ]
        for claim in ours.claims
    ]
    return {"fit": True, "claims": claims}


def _normal(answer: Json, is_sorted: bool) -> object:
    if not answer["fit"]:
        return "panic" if answer.get("panic") else "error" if answer.get("error") and not answer.get("node") else "none"
    claims = []
    for claim in answer["claims"]:
        devices = [
            [
                device["request"],
                device["driver"],
                device["pool"],
                device["device"],
                bool(device.get("admin")),
                {name: _nano(amount) for name, amount in (device.get("consumed") or {}).items()},
            ]
            for device in claim
        ]
        claims.append(devices if is_sorted else sorted(devices, key=str))
    return claims


def _nano(amount: str | int) -> int:
    return amount if isinstance(amount, int) else nano_value(amount)


def _print(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def main(arguments: list[str]) -> None:
    if arguments[0] == "generate":
        seed, count, minor = map(int, arguments[1:])
        for number in range(count):
            _print(json.dumps(case(Random(f"{seed}/{minor}/{number}"), minor), separators=(",", ":")))
        return
    totals: Counter[str] = Counter()
    with Path(arguments[1]).open() as cases, Path(arguments[2]).open() as answers:
        for number, (text, answer) in enumerate(zip(cases, answers, strict=True)):
            item = json.loads(text)
            ours = predicted(item)
            result = verdict(item, json.loads(answer), ours)
            totals[result] += 1
            if isinstance(ours, Allocation):
                totals["(allocations)"] += 1
            if result == "different" and totals[result] <= 5:
                _print(number, item["features"], "\n  ours:", ours, "\n  real:", answer[:600])
    for name, count in totals.most_common():
        _print(f"{count:7} {name[:150]}")


if __name__ == "__main__":
    main(sys.argv[1:])

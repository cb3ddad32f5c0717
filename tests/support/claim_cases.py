"""Random clusters with ResourceClaims, and comparison of our allocations with kube-scheduler's allocator.

`python tests/support/claim_cases.py generate SEED COUNT` prints cases, a JSON object a line, and `restrict CASES` the
cases with the devices alone that we chose. A harness prints the result of the real allocator for each line, and
`compare CASES ANSWERS RESTRICTED ANSWERS` how many of our allocations it agrees with. `record` with the same arguments
prints a sample of cases and answers.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from topowise.quantity import nano_value
from topowise_scheduler.options.claims.allocated import AllocatedDevices
from topowise_scheduler.options.claims.allocator import Allocation, NoFit, Unknown, allocate
from topowise_scheduler.options.claims.inventory import Inventory
from topowise_scheduler.options.claims.objects import DeviceID, decode_claim, decode_class, decode_slice
from topowise_scheduler.options.claims.selectors import Selectors
from topowise_scheduler.options.claims.work import Work
from topowise_scheduler.verdicts.kube_scheduler import Node

Case = dict[str, Any]
Json = dict[str, Any]

_DRIVERS = ("gpu.example.com", "nic.example.com", "fpga.example.org")
_ATTRIBUTES = ("numa", "model", "healthy", "version", "lane")
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"


def case(random: Random) -> Case:
    """A node, the cluster's slices and classes, and the claims of a pod. `lists`: attributes may be lists; `ranks` is
    how devices are ranked."""
    lists = random.random() < 0.3
    drivers = random.sample(_DRIVERS, random.choice((1, 1, 2, 3)))
    slices = [item for driver in drivers for item in _pools(random, driver, lists)]
    random.shuffle(slices)
    classes = [_class(random, driver, number) for number, driver in enumerate(drivers * 2)]
    names = [item["metadata"]["name"] for item in classes]
    claims = [claim(random, f"claim-{index}", names, drivers) for index in range(random.choice((1, 1, 1, 2, 3)))]
    return {
        "node": {"metadata": {"name": "n1", "labels": {"zone": "a", "kubernetes.io/hostname": "n1"}}},
        "slices": slices,
        "classes": classes,
        "drivers": drivers,
        "claims": claims,
        "allocated": _allocated(random, slices),
        "lists": lists,
        "ranks": random.choice(("none", "none", "numa", "numa", "random", "numa or not at all")),
    }


def _pools(random: Random, driver: str, lists: bool) -> list[Json]:
    """The slices of one to three pools of a driver."""
    slices: list[Json] = []
    for number in range(random.choice((1, 1, 1, 2, 3))):
        kind = random.choice(("node", "node", "node", "node", "other", "shared", "selector", "per device", "counters"))
        slices += _slices(random, driver, f"{kind.replace(' ', '-')}-{number}", kind, lists)
        if random.random() < 0.06:
            slices += _slices(
                random,
                driver,
                f"{kind.replace(' ', '-')}-{number}",
                kind,
                lists,
                generation=random.choice((0, 0, 2, 2, 1)),
            )
    return slices


def _slices(random: Random, driver: str, pool: str, kind: str, lists: bool, generation: int = 1) -> list[Json]:
    prefix = driver.partition(".")[0]
    slices: list[Json] = []
    number = random.choice((1, 1, 1, 2)) if kind != "counters" else random.choice((1, 2))
    counted = _counter_sets(random) if kind == "counters" else []
    first = 0
    for _ in range(number):
        devices = []
        for index in range(first, first + random.randint(2, 8)):
            device = _device(random, f"{prefix}-{index}", counted, lists)
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


def _device(random: Random, name: str, counted: list[Json], lists: bool) -> Json:
    device: Json = {"name": name}
    attributes: Json = {}
    for attribute in _ATTRIBUTES:
        if random.random() < (0.97 if attribute in ("numa", "model") else 0.7):
            attributes[attribute] = _attribute(random, attribute)
            if lists and random.random() < 0.4:
                attributes[attribute] = _list(random, attribute)
    if random.random() < 0.7:
        attributes[_PCIE_ROOT] = {"string": f"pci0000:0{random.randint(0, 2)}"}
    if attributes:
        device["attributes"] = attributes
    if random.random() < 0.8:
        device["capacity"] = {"memory": {"value": random.choice(("10Gi", "40Gi", "80Gi", "40G"))}}
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
    if random.random() < 0.002:
        device["nodeAllocatableResourceMappings"] = {"cpu": {"allocationMultiplier": "1"}}
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


def _list(random: Random, name: str) -> Json:
    ((kind, _),) = _attribute(random, name).items()
    values = [value for _ in range(random.randint(1, 3)) for value in _attribute(random, name).values()]
    return {f"{kind}s": list(dict.fromkeys(values))}


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
            f"{attribute}.?numa.orValue(0) != 5",
        )
    )


def _selectors(random: Random, driver: str, probability: float) -> Json:
    if random.random() >= probability:
        return {}
    return {"selectors": [{"cel": {"expression": _selector(random, driver)}} for _ in range(random.choice((1, 1, 2)))]}


def _class(random: Random, driver: str, number: int) -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{driver}"'}}] if random.random() < 0.85 else []
    selectors += _selectors(random, driver, 0.15).get("selectors", [])
    spec: Json = {"selectors": selectors} if selectors else {}
    if random.random() < 0.3:
        spec["config"] = [_config(random, driver) for _ in range(random.randint(1, 2))]
    return {"metadata": {"name": f"class-{number}"}, "spec": spec}


def _config(random: Random, driver: str) -> Json:
    return {"opaque": {"driver": driver, "parameters": {"kind": "Config", "share": random.randint(1, 9), "of": [1.5]}}}


def _request(random: Random, classes: list[str], drivers: list[str]) -> Json:
    name = random.choice(classes) if random.random() < 0.995 else "class-missing"
    number = int(name.rpartition("-")[2]) if name[-1].isdigit() else 0
    request: Json = {"deviceClassName": name, **_selectors(random, drivers[number % len(drivers)], 0.4)}
    if random.random() < 0.12:
        request["allocationMode"] = "All"
    else:
        request |= {"allocationMode": "ExactCount", "count": random.choice((1, 1, 1, 1, 1, 1, 2, 2, 3, 8))}
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


def claim(random: Random, name: str, classes: list[str], drivers: list[str]) -> Json:
    """A claim of devices of the classes, which are of these drivers in turn."""
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
    if random.random() < 0.3:
        spec["config"] = [
            _config(random, drivers[0]) | ({"requests": _some_of(random, requests)} if random.random() < 0.6 else {})
            for _ in range(random.randint(1, 2))
        ]
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": spec}}


def _constraint(random: Random, requests: list[Json], drivers: list[str]) -> Json:
    attribute = random.choice((_PCIE_ROOT, f"{drivers[0]}/numa", f"{drivers[0]}/numa", f"{drivers[-1]}/model"))
    kind = "distinctAttribute" if random.random() < 0.2 else "matchAttribute"
    if kind == "distinctAttribute":
        attribute = f"{drivers[0]}/{random.choice(('lane', 'model', 'numa'))}"
    constraint: Json = {kind: attribute}
    if random.random() < 0.5:
        constraint["requests"] = _some_of(random, requests)
    return constraint


def _some_of(random: Random, requests: list[Json]) -> list[str]:
    names = [request["name"] for request in requests]
    names += [f"{request['name']}/{sub['name']}" for request in requests for sub in request.get("firstAvailable", ())]
    return random.sample(names, random.randint(1, min(2, len(names))))


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


class Run:
    """A case as our allocator has it. `ranks` replaces how its devices are ranked."""

    def __init__(self, item: Case, selectors: Selectors | None = None, ranks: str | None = None) -> None:
        encode = msgspec.json.encode
        self.inventory = Inventory()
        for resource_slice in item["slices"]:
            self.inventory.put(decode_slice(encode(resource_slice)))
        self.classes = {one.name: one for one in (decode_class(encode(raw)) for raw in item["classes"])}
        self.allocated = AllocatedDevices()
        for raw in item["allocated"]:
            allocation = decode_claim(encode(raw)).status.allocation
            assert allocation is not None
            self.allocated.add(allocation.devices.results or ())
        metadata = item["node"]["metadata"]
        labels = dict(metadata["labels"])
        self.node = Node(metadata["name"], hostname=labels.pop("kubernetes.io/hostname"), labels=labels)
        self.claims = [decode_claim(encode(raw)) for raw in item["claims"]]
        self.selectors = selectors or Selectors()
        self._rank = _rank(item, item["ranks"] if ranks is None else ranks)

    def allocate(self) -> Allocation | NoFit | Unknown:
        """Our result."""
        return allocate(
            self.node,
            self.claims,
            self.inventory,
            self.classes,
            self.allocated,
            self.selectors,
            Work(),
            self._rank,
        )


def _rank(item: Case, ranks: str) -> Callable[[DeviceID], int | None]:
    if ranks == "none":
        return lambda device: 0
    if ranks == "random":
        return lambda device: Random(f"{device}").choice((0, 0, 1, 2, None))
    numa = {
        (spec["driver"], spec["pool"]["name"], device["name"]): device.get("attributes", {}).get("numa", {}).get("int")
        for spec in (raw["spec"] for raw in item["slices"])
        for device in spec.get("devices", ())
    }
    other = None if ranks == "numa or not at all" else 1
    return lambda device: 0 if numa.get(device) == 0 else other


def restricted(item: Case, allocation: Allocation) -> Case:
    """The case with the chosen devices alone, and the counters that other devices leave.

    What all devices are that an alternative asks for is another question then, so alternatives for all devices are
    left out before the one that we chose.
    """
    run = Run(item)
    chosen = {result.id for claim in allocation.claims for result in claim.devices.results or ()}
    pools = {pool.id: pool for pool in run.inventory.pools(run.node)}
    where = {device.id: device.stored.name for pool in pools.values() for device in pool.devices}
    slices: list[Json] = []
    for raw in deepcopy(item["slices"]):
        spec, name = raw["spec"], raw["metadata"]["name"]
        pool = (spec["driver"], spec["pool"]["name"])
        used = {where[device] for device in chosen if device[:2] == pool}
        generations = [one["spec"]["pool"]["generation"] for one in item["slices"] if one["metadata"]["name"] in used]
        if spec["pool"]["generation"] not in generations:
            continue
        if "devices" in spec:
            spec["devices"] = [
                device
                for device in spec["devices"]
                if where.get(DeviceID(*pool, device["name"])) == name and DeviceID(*pool, device["name"]) in chosen
            ]
        if spec.get("devices") or spec.get("sharedCounters"):
            _leave_counters(spec, item, chosen, spec["pool"]["generation"])
            slices.append(raw)
    for raw in slices:
        pool = raw["spec"]["pool"]
        same = [one for one in slices if one["spec"]["driver"] == raw["spec"]["driver"]]
        pool["resourceSliceCount"] = sum(one["spec"]["pool"]["name"] == pool["name"] for one in same)
    claims = deepcopy(item["claims"])
    for claim, allocated in zip(claims, allocation.claims, strict=True):
        names = {result.request for result in allocated.devices.results or ()}
        for request in claim["spec"]["devices"]["requests"]:
            request["firstAvailable"] = list(_alternatives(request, names))
    return item | {"slices": slices, "claims": claims, "ranks": "none"}


def _alternatives(request: Json, chosen: set[str]) -> Iterator[Json]:
    for alternative in request.get("firstAvailable", ()):
        is_chosen = f"{request['name']}/{alternative['name']}" in chosen
        if is_chosen or alternative["allocationMode"] != "All":
            yield alternative
        if is_chosen:
            return


def _leave_counters(spec: Json, item: Case, chosen: set[DeviceID], generation: int) -> None:
    """Takes what allocated devices consume, which are left out, from the counters of a slice."""
    taken = {
        (result["driver"], result["pool"], result["device"])
        for claim in item["allocated"]
        for result in claim["status"]["allocation"]["devices"]["results"]
        if not result.get("adminAccess")
    } - chosen
    sets = {one["name"]: one["counters"] for one in spec.get("sharedCounters", ())}
    for other in (raw["spec"] for raw in item["slices"]):
        pool = other["pool"]
        if (other["driver"], pool["name"], pool["generation"]) != (spec["driver"], spec["pool"]["name"], generation):
            continue
        for device in other.get("devices", ()):
            if (other["driver"], pool["name"], device["name"]) not in taken:
                continue
            for consumption in device.get("consumesCounters", ()):
                for name, counter in consumption["counters"].items():
                    left = sets.get(consumption["counterSet"], {}).get(name)
                    if left is not None:
                        left["value"] = f"{(nano_value(left['value']) - nano_value(counter['value'])) // 10**9}"


def answer_of(ours: Allocation) -> list[Json]:
    """Our allocation in the form of the real one."""
    return [_comparable(json.loads(msgspec.json.encode(claim))) for claim in ours.claims]


def _comparable(allocation: Json) -> Json:
    for result in allocation["devices"]["results"]:
        if "shareID" in result:
            result["shareID"] = ""
    return allocation


def agrees(ours: Allocation | NoFit | Unknown, answer: Json) -> bool:
    """Whether our result is the answer of the real allocator, but for share ids."""
    if not isinstance(ours, Allocation):
        return isinstance(ours, NoFit) and not answer["fit"]
    return bool(answer["fit"]) and answer_of(ours) == [_comparable(claim) for claim in answer["claims"]]


def _print(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def _read(name: str) -> Iterator[Json]:
    with Path(name).open() as lines:
        yield from map(json.loads, lines)


def _record(cases: Iterator[Json], answers: Iterator[Json], less: Iterator[Json], given: Iterator[Json]) -> None:
    left = Counter({"Allocation": 250, "NoFit": 50})
    for item, answer, fewer, answer_of_fewer in zip(cases, answers, less, given, strict=True):
        kind = type(Run(item).allocate()).__name__
        case_, answer_ = (fewer, answer_of_fewer) if kind == "Allocation" else (item, answer)
        # Shares let fewer devices suffice, once the others are gone.
        if left[kind] and agrees(Run(case_).allocate(), answer_):
            left[kind] -= 1
            _print(json.dumps({"case": case_, "answer": answer_}, separators=(",", ":")))


def main(arguments: list[str]) -> None:
    if arguments[0] == "generate":
        seed, count = map(int, arguments[1:])
        for number in range(count):
            _print(json.dumps(case(Random(f"{seed}/{number}")), separators=(",", ":")))
        return
    if arguments[0] == "restrict":
        for item in _read(arguments[1]):
            ours = Run(item).allocate()
            _print(json.dumps(restricted(item, ours) if isinstance(ours, Allocation) else item, separators=(",", ":")))
        return
    if arguments[0] == "record":
        _record(*map(_read, arguments[1:]))
        return
    totals: Counter[str] = Counter()
    for number, (item, answer, less, given) in enumerate(zip(*map(_read, arguments[1:]), strict=True)):
        ours = Run(item).allocate()
        kind = type(ours).__name__
        totals[kind] += 1
        result = ""
        if isinstance(ours, Allocation):
            result = "given our devices: " + ("equal" if agrees(ours, given) else "DIFFERENT")
            if not agrees(Run(less).allocate(), given):
                result += ", and of ours alone"
        elif isinstance(ours, Unknown):
            totals[f"unknown: {re.sub('(class|claim|device) [^ ]*', '', ours.feature)}"] += 1
        totals[result] += bool(result)
        if "DIFF" in result and totals[result] <= 5:
            _print(number, "\n  ours:", json.dumps(answer_of(ours)), "\n  real:", json.dumps(given)[:3000])
        everyone = Run(item, ranks="none").allocate()
        fits = f"with all devices: ours {type(everyone).__name__}, the real one {'fits' if answer['fit'] else 'not'}"
        totals[fits] += 1
        if isinstance(everyone, NoFit) and answer["fit"] and totals[fits] <= 5:
            _print(number, "\n  ours:", everyone, "\n  real:", json.dumps(answer)[:3000])
    for name, count in totals.most_common():
        _print(f"{count:7} {name}")


if __name__ == "__main__":
    main(sys.argv[1:])

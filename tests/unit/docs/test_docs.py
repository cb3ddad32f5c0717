"""The pages say what is there: links lead somewhere, commands parse, names exist, examples give the printed output."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import re
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

import topowise_exporter.__main__
import topowise_scheduler.__main__
from topowise import cpuset, pods
from topowise.runtime.config import Configuration, load
from topowise.runtime.config_errors import REMOVED
from topowise_exporter.configuration import ExporterConfiguration
from topowise_exporter.metrics import Metrics
from topowise_scheduler.configuration import SchedulerConfiguration
from topowise_scheduler.explain import explanation
from topowise_scheduler.explain.refusal_texts import TEXTS
from topowise_scheduler.kubectl import arguments
from topowise_scheduler.kubelet import Kubelet
from topowise_scheduler.kubelet.masks import members
from topowise_scheduler.report.replay import Scenario
from topowise_scheduler.verdicts import strategies
from topowise_scheduler.verdicts.refusals import PREFIX
from topowise_scheduler.verdicts.strategies import scale

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
# Made from the code, with usages instead of commands.
GENERATED = {DOCS / "reference/cli.md", DOCS / "reference/configuration.md", DOCS / "reference/metrics.md"}

PARSERS: dict[str, argparse.ArgumentParser] = {
    "topowise-exporter": topowise_exporter.__main__._parser(),
    "topowise-scheduler": topowise_scheduler.__main__._parser(),
    "kubectl topowise": arguments.parser("0"),
}


def named(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """The fenced blocks in the given languages."""
    for indent, language, text in re.findall(r"^( *)```(\w*)\n(.*?)^\1```", page.read_text(), re.M | re.S):
        if language in languages:
            yield re.sub(f"^{indent}", "", text, flags=re.MULTILINE)


def prose(page: Path) -> str:
    """The page without fenced blocks."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.M | re.S)


def inline(page: Path) -> list[str]:
    """The texts between single backticks."""
    return [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(page))]


# Links


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors that GitHub derives from headings, and explicit anchors."""
    names: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.append(f"{anchor}-{names.count(anchor)}" if anchor in names else anchor)
    return frozenset([*names, *re.findall(r'<a id="([^"]+)"', prose(page))])


# And the pages that are no documentation, whose commands and names may be of the past.
EVERYWHERE = sorted({*PAGES, REPOSITORY / "CHANGELOG.md", *(REPOSITORY / "tests").rglob("README.md")})


@pytest.mark.parametrize("page", EVERYWHERE, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", prose(page))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


def test_links_are_checked_at_all() -> None:
    assert "what-it-starts" in anchors(DOCS / "how-to/install.md")
    assert "not-there" not in anchors(DOCS / "how-to/install.md")


# Commands


def commands(page: Path) -> Iterator[list[str]]:
    """The command lines of a page's console blocks that begin with a topowise program."""
    for block in blocks(page, "console", "bash", "sh"):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if not re.match(r"[$#] ", line):
                continue
            for part in re.split(r"<\(|\|\|?|&&|;|\)|[<>&]", line[2:]):
                yield from our_commands(part)


def our_commands(text: str) -> Iterator[list[str]]:
    """The program and its arguments; nothing for other programs' commands."""
    words = shlex.split(text.replace("'", ""), comments=True)
    words = words[1:] if words[:1] == ["source"] else words
    if words[:2] == ["kubectl", "topowise"]:
        yield ["kubectl topowise", *words[2:]]
    elif words and words[0] in PARSERS:
        yield words


def warning(words: list[str]) -> str:
    """What argparse says, "" if nothing."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            PARSERS[words[0]].parse_args(words[1:])
        except SystemExit as exc:
            return said.getvalue() if exc.code else ""
    return ""


@every_page
def test_command_lines_parse(page: Path) -> None:
    if page in GENERATED:
        return
    for words in commands(page):
        assert not warning(words), words


@every_page
def test_commands_in_the_text_exist(page: Path) -> None:
    """Mentioned without all of their arguments: the command is there, and so are its options."""
    if page in GENERATED:
        return
    for text in inline(page):
        for words in our_commands(text) if text.count('"') % 2 == 0 else ():
            mentioned = [word for word in words[1:] if word not in ("...", "|")]
            if not mentioned or mentioned[0].startswith("-") or "|" in mentioned[0]:
                continue
            (known,) = (known for known in PARSERS[words[0]]._actions if isinstance(known, argparse._SubParsersAction))
            assert mentioned[0] in known.choices, text
            options = known.choices[mentioned[0]]._option_string_actions
            assert not [word for word in mentioned[1:] if word.startswith("-") and word not in {*options, "-"}], text


def test_commands_are_checked_at_all() -> None:
    assert warning(["topowise-exporter", "once", "--nothing"])
    assert warning(["kubectl topowise", "look"])
    all_commands = [words for page in PAGES if page not in GENERATED for words in commands(page)]
    assert {words[0] for words in all_commands} == set(PARSERS)
    assert len(all_commands) > 30


# Names


def test_every_refusal_is_explained() -> None:
    documented = (DOCS / "how-to/explain.md").read_text()
    texts = [text for text in TEXTS.values() if text.startswith(PREFIX)]
    assert len(texts) >= 12
    assert not [text for text in texts if f"| `{text}` |" not in documented]
    # And none that is not said any more.
    assert set(re.findall(r"^\| `(NUMA: [^`]+)` \|", documented, re.MULTILINE)) == set(texts)


def test_every_strategy_is_described() -> None:
    documented = (DOCS / "how-to/strategies.md").read_text()
    assert not [name for name in strategies.NAMES if not re.search(rf"^\| `{name}` \| ", documented, re.MULTILINE)]


def generator() -> Any:
    """hack/gen-reference as a module."""
    path = REPOSITORY / "hack/gen-reference"
    spec = importlib.util.spec_from_loader("gen_reference", SourceFileLoader("gen_reference", str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def metrics() -> frozenset[str]:
    """Every series of both daemons."""
    module = generator()
    names = set()
    for registry in (Metrics().registry, module.of_scheduler()):
        for name, kind, _, _ in module.families(registry):
            names |= {name, *(f"{name}_{end}" for end in ("bucket", "sum", "count") if kind == "histogram")}
    return frozenset(names)


@every_page
def test_metrics_that_pages_name_exist(page: Path, metrics: frozenset[str]) -> None:
    assert not set(re.findall(r"\btopowise_(?:exporter|scheduler)_\w+", page.read_text())) - metrics


def test_the_glossary_has_no_word_that_nothing_uses() -> None:
    words = re.findall(r"^\| ([a-z ]+) \|", (DOCS / "glossary.md").read_text(), re.MULTILINE)[1:]
    used = "\n".join(
        path.read_text().lower() for folder in ("exporter", "plugin") for path in (REPOSITORY / folder).rglob("*.py")
    )
    assert len(words) > 15
    assert not [word for word in words if not re.search(rf"\b{word.replace(' ', '[ _]?')}", used)]


@every_page
def test_options_that_pages_name_exist(page: Path) -> None:
    options = re.findall(r"^\| `([\w.]+)` \|", (DOCS / "reference/configuration.md").read_text(), re.MULTILINE)
    if page == DOCS / "how-to/upgrade.md":
        options += [path for fields in REMOVED.values() for path in fields]
    sections = {option.partition(".")[0] for option in options if "." in option}
    for text in inline(page):
        if re.fullmatch(rf"(?:{'|'.join(sections)})\.[\w.]+", text) and not text.endswith(".py"):
            assert text in options or any(option.startswith(f"{text}.") for option in options), text


def test_values_that_pages_name_exist() -> None:
    values = yaml.safe_load((REPOSITORY / "charts/topowise/values.yaml").read_text())
    free_form = ("exporter.config.", "scheduler.config.", "scheduler.kubeScheduler.config")
    for page in (DOCS / "quick-start.md", *(DOCS / "how-to").glob("*.md")):
        for text in inline(page):
            path = text.partition(":")[0]
            if not re.fullmatch(r"(?:exporter|scheduler|image|crds|networkPolicy|monitoring)\.[\w.]+", path):
                continue
            inside: Any = values
            for part in path.split("."):
                if path.startswith(free_form) and part not in inside:
                    break
                assert part in inside, f"{named(page)}: {text}"
                inside = inside[part]


# Examples


KINDS: dict[str, type[Configuration]] = {
    "ExporterConfiguration": ExporterConfiguration,
    "SchedulerConfiguration": SchedulerConfiguration,
}


@every_page
def test_yaml_is_yaml_and_our_own_kinds_are_valid(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            kind = document.get("kind") if isinstance(document, dict) else None
            if kind in KINDS:
                file = tmp_path / f"{kind}.yaml"
                file.write_text(block)
                load(KINDS[kind], str(file))
            if kind == "Pod":
                pods.needs(pods.decode(json.dumps(document).encode()))


def test_scores_are_spread_as_documented() -> None:
    documented = (DOCS / "how-to/strategies.md").read_text()
    rows = re.findall(r"^\| ([\d,]+(?: · [\d,]+)+) \| ([\d ·]+) \| ([\d ·]+) \|$", documented, re.MULTILINE)
    assert len(rows) == 3
    for cells in rows:
        raw, ten, hundred = ([int(number.replace(",", "")) for number in cell.split(" · ")] for cell in cells)
        assert scale.spread(np.array(raw), np.zeros(4, np.int64), 10).tolist() == ten
        assert scale.spread(np.array(raw), np.zeros(4, np.int64), 100).tolist() == hundred
    [(mixed, *levels)] = re.findall(
        r"^\| ([\d,]+ aligned · .+) \| ([\d ·]+) \| ([\d ·]+) \|$", documented, re.MULTILINE
    )
    cells = [cell.split() for cell in mixed.replace(",", "").split(" · ")]
    scores, ranks = np.array([int(score) for score, _ in cells]), np.array([int(how == "split") for _, how in cells])
    for text, top in zip(levels, (10, 100), strict=True):
        assert scale.spread(scores, ranks, top).tolist() == [int(level) for level in text.split(" · ")]


def test_weights_add_up() -> None:
    documented = (DOCS / "how-to/strategies.md").read_text()
    weights = re.findall(r"^\| (?:\w+) \| (\d+) \| (\d+) \|$", documented, re.MULTILINE)
    assert sum(int(weight) for weight, _ in weights) == 12
    assert all(100 * int(weight) == int(most) for weight, most in weights)
    worth = re.findall(
        r"^\| \**(\d+)\** \| \**(\d+)\** \| \**0 to ([\d,]+)\** \| \**(\d+)\** \|$", documented, re.MULTILINE
    )
    assert len(worth) == 5
    for weight, top, most, step in worth:
        assert int(weight) * int(top) * 10 == int(most.replace(",", ""))
        assert int(weight) * 10 == int(step)


def test_the_picture_is_for_light_and_dark() -> None:
    path = DOCS / "images/architecture.svg"
    text = path.read_text()
    root = ET.fromstring(text)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme: dark" in text
    light, dark = re.findall(r"svg \{(.*?)\}", text, re.DOTALL)
    assert re.findall(r"--[\w-]+", light) == re.findall(r"--[\w-]+", dark)
    assert set(re.findall(r"var\((--[\w-]+)\)", text)) <= set(re.findall(r"(--[\w-]+):", light))


# The machine of concepts.md


GIB = 1 << 30


def pod(name: str, *containers: dict[str, str]) -> dict[str, Any]:
    """A Guaranteed pod."""
    specs = [
        {"name": f"c{at}", "resources": {"requests": requests, "limits": requests}}
        for at, requests in enumerate(containers)
    ]
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"containers": specs}}


WEB = pod("web", {"cpu": "4", "memory": "8Gi"})
TRAINER = pod("trainer", {"cpu": "5", "memory": "12Gi", "example.com/gpu": "1"})
SOLVER = pod("solver", {"cpu": "6", "memory": "4Gi"})
PAIR = pod("pair", {"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "1Gi"})


def node(policy: str, scope: str = "container") -> Kubelet:
    """Two NUMA nodes of 8 CPUs and 32 GiB; CPU 0 and 1 GiB of node 0 reserved, a GPU at node 1."""
    numa = [
        {
            "id": at,
            "memory": 32 * GIB,
            "distances": [10, 21] if at == 0 else [21, 10],
            "hugepages": {},
            "cores": [{"socket": at, "threads": [cpu]} for cpu in range(8 * at, 8 * at + 8)],
        }
        for at in (0, 1)
    ]
    config = {
        "topologyManagerPolicy": policy,
        "topologyManagerScope": scope,
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
        "reservedSystemCPUs": "0",
        "systemReserved": {"memory": "1Gi"},
        "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}],
    }
    gpu = {"resource": "example.com/gpu", "devices": [{"id": "gpu-0", "numa": [1]}]}
    scenario = msgspec.convert({"machine": {"numa": numa, "devices": [gpu]}, "config": config}, Scenario)
    return Kubelet(scenario.machine, scenario.config)


def admit(kubelet: Kubelet, document: dict[str, Any]) -> list[tuple[str, list[int]]] | str:
    """CPUs and NUMA nodes of the memory, container by container; or the kubelet's reason."""
    admission = kubelet.admit(pods.decode(json.dumps(document).encode()))
    if not admission.admitted:
        return admission.reason
    return [
        (cpuset.to_text(members(placed.cpus or 0)), sorted({numa for block in placed.memory for numa in block.numa}))
        for placed in admission.placements.values()
    ]


def with_both(policy: str, scope: str = "container") -> Kubelet:
    """The node with the first two pods on it."""
    kubelet = node(policy, scope)
    for document in (WEB, TRAINER):
        assert isinstance(admit(kubelet, document), list)
    return kubelet


def said(kubelet: Kubelet, document: dict[str, Any]) -> explanation.NodeExplanation:
    decoded = pods.decode(json.dumps(document).encode())
    view = kubelet.view("asked", pods.needs(decoded))
    return explanation.explain("node", kubelet.fork(), view, precision="exact")


@pytest.fixture(scope="module")
def concepts() -> str:
    return " ".join((DOCS / "concepts.md").read_text().split())


@pytest.mark.parametrize("policy", ["single-numa-node", "restricted"])
def test_strict_policies_refuse_the_solver(policy: str, concepts: str) -> None:
    kubelet = node(policy)
    assert admit(kubelet, WEB) == [("1-4", [0])]
    assert admit(kubelet, TRAINER) == [("8-12", [1])]
    assert admit(kubelet, SOLVER) == "TopologyAffinityError"
    assert "NUMA node 0: CPUs 1-4 |" in concepts
    assert "NUMA node 1: CPUs 8-12 |" in concepts


def hints(kubelet: Kubelet, document: dict[str, Any]) -> str:
    """Sets that fit, as the table of the page writes them, with preferred sets in bold."""
    seen: dict[str, str] = {}

    def watch(_: object, __: object, groups: Any, ___: object) -> None:
        for resource, group in groups:
            sets = [mask for mask in (0b01, 0b10, 0b11) if group.fits >> mask & 1]
            words = {0b01: "0", 0b10: "1", 0b11: "0+1"}
            seen[{"cpu": "CPU", "example.com/gpu": "GPU"}.get(resource, resource)] = ", ".join(
                f"**{words[mask]}**" if group.preferred >> mask & 1 else words[mask] for mask in sets
            )

    kubelet.fork().admit_view(kubelet.view("asked", pods.needs(pods.decode(json.dumps(document).encode()))), watch)
    return "; ".join(f"{name} {seen[name]}" for name in ("CPU", "memory", "GPU") if name in seen)


def test_hints_are_as_in_the_table(concepts: str) -> None:
    kubelet = node("single-numa-node")
    for document in (WEB, TRAINER, SOLVER):
        assert f"| {hints(kubelet, document)} |" in concepts
        admit(kubelet, document)


def test_other_policies_and_scopes(concepts: str) -> None:
    assert admit(with_both("best-effort"), SOLVER) == [("5-7,13-15", [0])]
    assert "CPUs 5-7 and 13-15 and its memory on NUMA node 0" in concepts

    kubelet = node("none")
    assert admit(kubelet, WEB) == [("1-4", [0])]
    assert admit(kubelet, TRAINER) == [("5-9", [0])]
    assert "CPUs 5-9 of both nodes and memory on NUMA node 0" in concepts

    assert admit(with_both("single-numa-node", "pod"), PAIR) == "TopologyAffinityError"
    assert admit(with_both("single-numa-node"), PAIR) == [("5-6", [0]), ("13-14", [1])]


def test_restricted_wants_one_set_for_all() -> None:
    assert admit(node("restricted"), pod("wide", {"cpu": "10", "memory": "4Gi"})) == "TopologyAffinityError"
    assert admit(node("restricted"), pod("wide", {"cpu": "10", "memory": "40Gi"})) == [("1-2,8-15", [0, 1])]


def test_explanations_are_as_quoted() -> None:
    documented = (DOCS / "how-to/explain.md").read_text().replace("container app ", "container c0 ")
    kubelet = with_both("restricted")
    assert said(kubelet, SOLVER).text in documented
    split = said(with_both("best-effort"), SOLVER).text
    assert split.removeprefix("container c0 ") in documented
    wide = said(node("restricted"), pod("wide", {"cpu": "10", "memory": "40Gi"}))
    assert wide.text.removeprefix("container c0 ") in documented
    assert said(node("none"), WEB).text in documented
    for cpus in ("1", "8"):
        container = {"name": "c0", "resources": {"requests": {"cpu": cpus}}}
        burstable = {"metadata": {"name": "b", "uid": "b"}, "spec": {"containers": [container]}}
        assert said(kubelet, burstable).text in documented
    memory = said(kubelet, pod("big", {"cpu": "1", "memory": "24Gi"}))
    assert memory.reason == "UnexpectedAdmissionError"
    assert "[memorymanager] failed to find NUMA nodes to extend the current topology hint" in memory.message
    assert "[memorymanager] failed to find NUMA nodes to extend the current topology hint" in documented
    assert explanation.not_reported("n").text in documented

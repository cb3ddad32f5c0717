"""Makes docs/benchmarks.md from a recorded run, so that no figure on the page is typed."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from bench import markdown, results, steering, tables
from bench.density import mix
from bench.density.measuring import NODES
from bench.results import Results

RECORDED: Final = Path("hack/bench/recorded.json")
PAGE: Final = Path("docs/benchmarks.md")

_WORDS: Final = Path(__file__).with_name("page.md")
_SHOWN_NODES: Final = 5000
_NODES: Final = {
    "500 names, 20 shapes": "500 nodes",
    "500 names, always a new shape": "500 nodes, no two pods alike",
    "TLS with client certificate, 500 names": "500 nodes, TLS with client certificates",
    "5,000 names, 20 shapes": "5,000 nodes",
    "5,000 names, always a new shape": "5,000 nodes, no two pods alike",
    "TLS with client certificate, 5,000 names": "5,000 nodes, TLS with client certificates",
}
_CALLS: Final = {
    "{}: filter, p50": "filter, p50",
    "{}: filter, p99": "p99",
    "{}: prioritize, p50": "prioritize, p50",
    "{}: prioritize, p99": "p99",
    "{}: CPU of the service a pod": "CPU a pod",
}
_STORMS: Final = {"500 NRT updates/s": "500 reports a second", "1,000 pod events/s": "1,000 changes of pods a second"}
_STORM: Final = {
    "500 names, 100 pods/s, {}: filter, p50": "filter, p50",
    "500 names, 100 pods/s, {}: filter, p99": "p99",
    "500 names, 100 pods/s, {}: prioritize, p50": "prioritize, p50",
    "500 names, 100 pods/s, {}: prioritize, p99": "p99",
    "{} with 100 pods/s: CPU of the service": "CPU",
    "{} alone: CPU of the service": "for the events alone",
    "{} with 100 pods/s: until nothing is left to take": "behind",
}
_STEERED: Final = {
    "{}: large pods, kubelet alone": "kubelet alone",
    "{}: large pods, steered": "steered",
    "{}: pods with a request": "pods with a request",
}
_SERVICE: Final = (
    "5,000 NRTs and 150,000 pods: start to ready",
    "5,000 NRTs and 150,000 pods: resident after that",
    "5,000 NRTs and 150,000 pods: resident after all of this",
    "5,000 NRTs and 150,000 pods: most resident",
)
_EXPORTER: Final = (
    "CPU while idle, a sync a second",
    "resident memory",
    "writes in 15 idle seconds",
    "start to first publish",
    "admission to API server, beyond that, p50",
    "admission to API server, beyond that, p99",
    "release without a file to API server, p50",
)


def write(repository: Path, run: Results) -> list[Path]:
    """Records a run, writes its page, and returns both paths. Raises KeyError if the run lacks a figure of the page."""
    contents = {RECORDED: results.as_json(run), PAGE: page(run)}
    for path, content in contents.items():
        (repository / path).write_bytes(content)
    return [repository / path for path in contents]


def page(run: Results) -> bytes:
    """Returns docs/benchmarks.md for a run. Raises KeyError if the run lacks a figure of the page."""
    mixes = {pod_mix.name: pod_mix for pod_mix in mix.read()}
    density = run.parts["density"].density
    return (
        Template(_WORDS.read_text())
        .substitute(
            day=run.day,
            machine=tables.machine(run.machine),
            minutes=f"{sum(part.seconds for part in run.parts.values()) / 60:.0f}",
            parts=markdown.parts(run.parts),
            **_of_processes(run),
            growth=markdown.growth(run.parts["engine"].growth, _SHOWN_NODES),
            nodes=NODES,
            mixes="\n".join(
                f"- **{pod_mix.title}** (`{pod_mix.name}`). Source: {pod_mix.origin} Our own: {pod_mix.ours}"
                for pod_mix in mixes.values()
            ),
            density=markdown.density(density, mixes),
            kinds=len(markdown.clusters(density)),
            steering=markdown.grid(
                {figure.name: figure for figure in run.parts["steering"].figures},
                "a node",
                dict(zip(steering.names(), steering.names(), strict=True)),
                _STEERED,
            ),
            choice=markdown.choice(markdown.clusters(density)),
            targets=markdown.figures(
                figure for part in run.parts.values() for figure in part.figures if figure.target is not None
            ),
        )
        .encode()
    )


def _of_processes(run: Results) -> dict[str, str]:
    service, exporter = (
        {figure.name: figure for figure in run.parts[part].figures} for part in ("scheduler", "exporter")
    )
    each, at_once = service["bind, one at a time, p50"], service["bind, 8 at a time"]
    return {
        "calls": markdown.grid(service, "names in a call", _NODES, _CALLS),
        "storms": markdown.grid(service, "events", _STORMS, _STORM),
        "binds": f"{each.value:g} {each.unit} each, {at_once.value:,g} {at_once.unit} with 8 at a time.",
        "service": markdown.figures(service[name] for name in _SERVICE),
        "exporter": markdown.figures(exporter[name] for name in _EXPORTER),
    }

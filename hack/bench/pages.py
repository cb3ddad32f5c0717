"""docs/benchmarks.md and its pictures, made of a recorded run, so that no figure on the page is written by hand."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from bench import markdown, pictures, results, tables
from bench.density import mix
from bench.density.measuring import NODES
from bench.density.steady import LOAD
from bench.figures import Figure
from bench.results import Results

RECORDED: Final = Path("hack/bench/recorded.json")
PAGE: Final = Path("docs/benchmarks.md")
GROWTH: Final = Path("docs/images/bench-engine.svg")
DENSITY: Final = Path("docs/images/bench-density.svg")

_WORDS: Final = Path(__file__).with_name("page.md")
BEFORE: Final = Path(__file__).with_name("density") / "before.json"
_SHOWN_NODES: Final = 5000
_ASKED: Final = {
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


def write(repository: Path, found: Results) -> list[Path]:
    """Records a whole run, and writes what is made of it. Raises KeyError for a run with other figures."""
    made = {RECORDED: results.as_json(found), **made_of(found)}
    for path, text in made.items():
        (repository / path).write_bytes(text)
    return [repository / path for path in made]


def made_of(found: Results) -> dict[Path, bytes]:
    """The page and its pictures by path."""
    mixes = {one.name: one for one in mix.read()}
    density = found.parts["density"].density
    page = Template(_WORDS.read_text()).substitute(
        day=found.day,
        machine=tables.machine(found.machine),
        minutes=f"{sum(one.seconds for one in found.parts.values()) / 60:.0f}",
        parts=markdown.parts(found.parts),
        **_of_processes(found),
        growth=markdown.growth(found.parts["engine"].growth, _SHOWN_NODES),
        nodes=NODES,
        mixes="\n".join(
            f"- **{one.title}** (`{one.name}`). From elsewhere: {one.origin} Ours: {one.ours}" for one in mixes.values()
        ),
        density=markdown.density(density, mixes),
        kinds=len(markdown.clusters(density)),
        choice=markdown.choice(markdown.clusters(density)),
        kinds_of_gpus=len(markdown.with_yardsticks(markdown.clusters(density))),
        choice_beside_fgd=markdown.choice(markdown.with_yardsticks(markdown.clusters(density))),
        before=markdown.before(results.rows(BEFORE), density, mixes),
        offered=markdown.offered(found.parts["density"].offered),
        steady=markdown.steady(found.parts["density"].steady, mixes),
        churn=markdown.churn(found.parts["p5"].churn),
        machines=found.parts["p5"].churn[0].machines,
        hours=f"{found.parts['p5'].churn[0].hours:g}",
        load=f"{LOAD:.0%}".replace("%", " %"),
        **_targets([one for part in found.parts.values() for one in part.figures if one.target is not None]),
    )
    titles = {name: one.title for name, one in mixes.items()}
    return {
        PAGE: page.encode(),
        GROWTH: pictures.growth(found.parts["engine"].growth).encode(),
        DENSITY: pictures.density(density, titles).encode(),
    }


def _of_processes(found: Results) -> dict[str, str]:
    service, exporter = ({one.name: one for one in found.parts[part].figures} for part in ("scheduler", "exporter"))
    each, at_once = service["bind, one at a time, p50"], service["bind, 8 at a time"]
    return {
        "calls": markdown.grid(service, "asked about", _ASKED, _CALLS),
        "storms": markdown.grid(service, "beside", _STORMS, _STORM),
        "binds": f"{each.value:g} {each.unit} each, {at_once.value:,g} {at_once.unit} with 8 at a time.",
        "service": markdown.figures(service[name] for name in _SERVICE),
        "exporter": markdown.figures(exporter[name] for name in _EXPORTER),
    }


def _targets(held: list[Figure]) -> dict[str, str]:
    missed = [one for one in held if one.is_missed]
    on_wall = [one for one in missed if one.on_wall]
    others = [one for one in missed if not one.on_wall]
    return {
        "targets": str(len(held)),
        "met": str(len(held) - len(missed)),
        "missed": markdown.folded(f"CPU times, memory and counts: {len(others)}", _list_of(others)),
        "missed_on_wall": markdown.folded(f"Times on the wall: {len(on_wall)}", _list_of(on_wall)),
    }


def _list_of(missed: list[Figure]) -> str:
    return markdown.figures(missed) if missed else "None."

"""docs/benchmarks.md and its pictures, made of a recorded run, so that no figure on the page is written by hand."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

from bench import markdown, pictures, results, tables
from bench.density import mix
from bench.density.measuring import NODES
from bench.figures import Figure
from bench.results import Results

RECORDED: Final = Path("hack/bench/recorded.json")
PAGE: Final = Path("docs/benchmarks.md")
GROWTH: Final = Path("docs/images/bench-engine.svg")
DENSITY: Final = Path("docs/images/bench-density.svg")

_WORDS: Final = Path(__file__).with_name("page.md")
_SHOWN_NODES: Final = (100, 1000, 5000, 20000)
_SHORT: Final = (
    ("engine", "single-numa-node, 5 resources: 5,000 nodes cold, p50"),
    ("engine", "single-numa-node, 5 resources: 10 of 5,000 changed, p50"),
    ("engine", "single-numa-node, 5 resources: a loop over the model takes"),
    ("scheduler", "500 names, 20 shapes: filter, p50"),
    ("scheduler", "500 names, 20 shapes: filter, CPU of the service, p50"),
    ("scheduler", "500 names, 20 shapes: prioritize, p50"),
    ("scheduler", "500 names, 20 shapes: prioritize, CPU of the service, p50"),
    ("scheduler", "5,000 names, 20 shapes: filter, CPU of the service, p50"),
    ("scheduler", "5,000 names, 20 shapes: prioritize, CPU of the service, p50"),
    ("scheduler", "500 NRT updates/s alone: CPU of the service"),
    ("scheduler", "1,000 pod events/s alone: CPU of the service"),
    ("scheduler", "5,000 NRTs and 150,000 pods: start to ready"),
    ("scheduler", "5,000 NRTs and 150,000 pods: resident after that"),
    ("exporter", "admission to API server, beyond that, p50"),
    ("exporter", "CPU while idle, a look a second"),
    ("exporter", "resident memory"),
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
    titles = {name: one.title for name, one in mixes.items()}
    growth, density = found.parts["engine"].growth, found.parts["density"].density
    figures = {part: {one.name: one for one in of_part.figures} for part, of_part in found.parts.items()}
    missed = [one for part in figures.values() for one in part.values() if one.is_missed]
    page = Template(_WORDS.read_text()).substitute(
        day=found.day,
        machine=tables.machine(found.machine),
        minutes=f"{sum(one.seconds for one in found.parts.values()) / 60:.0f}",
        parts=markdown.parts(found.parts),
        short=markdown.figures(figures[part][name] for part, name in _SHORT),
        density_short=markdown.density_short(density, mixes),
        missed=_told([one for one in missed if not one.on_wall]),
        missed_on_wall=_told([one for one in missed if one.on_wall]),
        growth=markdown.growth(growth, _SHOWN_NODES),
        engine=markdown.folded("All figures of the engine", markdown.figures(found.parts["engine"].figures)),
        scheduler=markdown.figures(found.parts["scheduler"].figures),
        exporter=markdown.figures(found.parts["exporter"].figures),
        nodes=NODES,
        mixes="\n".join(
            f"- **{one.title}** (`{one.name}`). From elsewhere: {one.origin} Ours: {one.ours}" for one in mixes.values()
        ),
        behind="\n\n".join(markdown.behind(density)),
        density="\n\n".join(markdown.density(density, mixes)),
    )
    return {
        PAGE: page.encode(),
        GROWTH: pictures.growth(growth).encode(),
        DENSITY: pictures.density(density, titles).encode(),
    }


def _told(missed: list[Figure]) -> str:
    return markdown.figures(missed) if missed else "None."

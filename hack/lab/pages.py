"""docs/lab.md, made of a recorded run: no figure on the page is written by hand, and what was not run is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Final

from images.application import REPOSITORY
from lab import results
from lab.results import Part, Results
from lab.settings import SETTINGS
from sandbox.tables import markdown

RECORDED: Final = Path("hack/lab/recorded.json")
PAGE: Final = Path("docs/lab.md")
_WORDS: Final = Path(__file__).with_name("page.md")
_SERIES: Final = "Series: "
# Cases that no run of the lab covers.
NEVER_RUN: Final = (
    "real hardware: QEMU emulates caches, distances and devices, and nothing is fast",
    "KVM, unless the line above names it",
    "hosts and images of arm64",
    "container runtimes and minors of kubelets beyond the list above",
    "devices of resource claims (DRA) in QEMU, SR-IOV, hot-plugged memory and CPUs",
    "topowise-scheduler as a pod: it runs on the host, with the rights that the chart gives to a static pod",
    "an upgrade between two releases, as there is no release yet",
)


def record(run: Results) -> None:
    """Records a run, and writes its page."""
    (REPOSITORY / RECORDED).write_bytes(results.as_json(run))
    write(run)


def write(run: Results) -> None:
    (REPOSITORY / PAGE).write_text(page(run))


def page(run: Results) -> str:
    series = [part for part in run.parts if part.name.startswith(_SERIES)]
    remaining = [part for part in run.parts if part not in series]
    runs = _runs(run.parts)
    return Template(_WORDS.read_text()).substitute(
        day=run.day,
        commit=run.commit,
        host=run.host,
        notes="\n".join(f"{note}\n" for note in run.notes),
        versions=markdown(("what", "version"), {**run.versions, "kubelet": _kubelets(run.parts)}.items()),
        machines=markdown(("guest", "machine"), run.machines.items()),
        parts=markdown(
            ("part", "guests", "kubelet", "run", "", "figures"),
            ((part.name, part.on, part.kubelet, runs[part.at], _verdict(part), _figures(part)) for part in remaining),
        ),
        runs=markdown(("run", "day, commit and image"), ((number, at) for at, number in runs.items())),
        series=_series(series, runs),
        problems=_problems(run.parts),
        not_run="\n".join(f"- {name}" for name in (*map(_unrun, run.not_run), *NEVER_RUN)),
    )


def _unrun(name: str) -> str:
    return f"{name}: skipped in this run, for lack of time"


def _verdict(part: Part) -> str:
    return "passed" if part.passed else "**failed**"


def _figures(part: Part) -> str:
    return "; ".join(f"{name}: {value}" for name, value in part.figures.items())


def _kubelets(parts: Iterable[Part]) -> str:
    return ", ".join(sorted({part.kubelet for part in parts}, reverse=True))


def _runs(parts: Iterable[Part]) -> dict[str, str]:
    """Numbers of what parts were run with, the latest first."""
    return {at: str(number) for number, at in enumerate(dict.fromkeys(part.at for part in reversed([*parts])), 1)}


def _series(series: Iterable[Part], runs: Mapping[str, str]) -> str:
    """Returns a row per series, the newest kubelet first, and a row of sums."""
    order = {f"{_SERIES}{name}": number for number, name in enumerate(SETTINGS)}
    parts = sorted(series, key=lambda part: (part.on, order.get(part.name, len(order))))
    parts.sort(key=lambda part: part.kubelet, reverse=True)
    if not parts:
        return "No series was run."
    names = list(dict.fromkeys(name for part in parts for name in part.figures))
    rows = [
        (
            part.name.removeprefix(_SERIES),
            *(part.on, part.kubelet, runs[part.at], _verdict(part)),
            *(str(part.figures.get(name, 0)) for name in names),
        )
        for part in parts
    ]
    sums = ("all", "", "", "", "", *(_all(name, parts) for name in names))
    return markdown(("series", "guests", "kubelet", "run", "", *names), [*rows, sums])


def _all(name: str, parts: Iterable[Part]) -> str:
    """Returns the sum of a figure; for the hit rate, the rate of the sums."""
    values = [part.figures.get(name, 0) for part in parts]
    if name == results.HIT_RATE:
        return str(results.hit_rate(*(int(_all(figure, parts)) for figure in (results.HITS, results.MISSES))))
    return str(sum(value for value in values if isinstance(value, int)))


def _problems(parts: Iterable[Part]) -> str:
    lines = [f"- {part.name}: {problem}" for part in parts for problem in part.problems]
    return "\n".join(lines).replace("|", "\\|") or "Nothing."

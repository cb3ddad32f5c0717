"""The whole test on a lab that runs, part after part; what it had no time for is named, not left out in silence."""

from __future__ import annotations

import os
import subprocess
import time
import traceback
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Final

import msgspec

import topowise
from images.application import REPOSITORY
from lab import controlplane, parts, results
from lab.cluster import Lab
from lab.gated import ByGate
from lab.parts.disturbing import reconfigure
from lab.placing import Placing
from lab.results import Part, Results
from lab.series import SETTINGS, STARTED, Series

SERIES: Final = "series"
ALL_SERIES: Final = tuple(f"{SERIES} {name}" for name in SETTINGS)
EACH: Final = (*parts.BEFORE, *ALL_SERIES, *parts.AFTER)
# The parts that the command line offers; SERIES selects all series.
NAMES: Final = (*parts.BEFORE, SERIES, *parts.AFTER)
Save = Callable[[Results], object]


class Test:
    """`deadline` is in monotonic time: no series begins after it, and a running series ends early. `setting` names the
    kubelets' policies during parts; `started` is the share of pods of a series that run."""

    def __init__(
        self,
        lab: Lab,
        chosen: Collection[str],
        pods: int,
        deadline: float,
        save: Save,
        setting: str = "",
        started: float = STARTED,
    ) -> None:
        self._lab, self._pods, self._deadline, self._save = lab, pods, deadline, save
        self._chosen, self._setting, self._started = chosen, setting, started
        self._series = [name for name in SETTINGS if SERIES in chosen or f"{SERIES} {name}" in chosen]
        self._count = len({*chosen} - {SERIES, *ALL_SERIES}) + len(self._series)
        self._number, self._start = 0, time.monotonic()
        self.results = Results(
            day=datetime.now(UTC).date().isoformat(),
            commit=_git("describe", "--always", "--dirty"),
            host=_host(lab),
            versions=_versions(lab),
            machines=tuple(lab.machines),
            not_run=tuple(
                name for name in EACH if name not in chosen and name.removeprefix("series ") not in self._series
            ),
        )

    def run(self) -> Results:
        if self._setting:
            self._lab.setting = SETTINGS[self._setting]
            for name in self._lab.nodes:
                reconfigure(self._lab, name, {})
        for name, part in parts.BEFORE.items():
            self._run(name, part)
        for number, setting in enumerate(SETTINGS):
            if setting in self._series:
                self._place(number, setting)
        if self._series:
            for name in self._lab.nodes:
                reconfigure(self._lab, name, {})
        for name, part in parts.AFTER.items():
            self._run(name, part)
        return self.results

    def _run(self, name: str, part: Callable[[Lab], Part]) -> None:
        if name not in self._chosen:
            return
        self._announce(name)
        if not parts.is_possible(name, self._lab):
            self._skip(name)
            return
        done = _guarded(name, lambda: part(self._lab))
        under = f" ({self._setting})" if self._setting else ""
        self._add(msgspec.structs.replace(done, name=f"{done.name}{under}"))

    def _announce(self, title: str) -> None:
        self._number += 1
        seconds = time.monotonic() - self._start
        print(f"lab: {seconds:5.0f} s  part {self._number} of {self._count}: {title}", flush=True)

    def _place(self, number: int, setting: str) -> None:
        self._announce(f"series {setting}")
        if time.monotonic() > self._deadline:
            self._skip(f"series {setting}")
            return
        title = f"Series{' by gate' if self._lab.by_gate else ''}: {setting}" + (
            "" if self._started == STARTED else f", {self._started:.0%} of the pods run"
        )

        def run() -> Part:
            for name in self._lab.nodes:
                reconfigure(self._lab, name, SETTINGS[setting])
            placing = ByGate(self._lab, number) if self._lab.by_gate else Placing(self._lab, number)
            series = Series(next(iter(self._lab.machines.values())), number, f"s{number}", self._started)
            before = self._lab.predictions()
            for pod in series.pods(self._pods):
                if time.monotonic() > self._deadline:
                    break
                placing.place(pod)
            part = placing.part(title)
            predicted = results.came_true(before, self._lab.predictions())
            self._lab.clear()
            return msgspec.structs.replace(part, figures={**part.figures, **predicted})

        self._add(_guarded(title, run))

    def _add(self, part: Part) -> None:
        print(f"lab: {'passed' if part.passed else 'FAILED'}  {part.name}: {part.figures}", flush=True)
        for problem in part.problems:
            print(f"lab:         {problem}", flush=True)
        self.results = msgspec.structs.replace(self.results, parts=(*self.results.parts, part))
        # A later part may end all of it.
        self._save(self.results)

    def _skip(self, name: str) -> None:
        self.results = msgspec.structs.replace(self.results, not_run=(*self.results.not_run, name))
        self._save(self.results)


def _guarded(name: str, run: Callable[[], Part]) -> Part:
    """Runs a part; an exception fails the part only."""
    try:
        return run()
    except Exception as exc:
        traceback.print_exc()
        return Part(name, passed=False, problems=(f"{type(exc).__name__}: {exc}",))


def _versions(lab: Lab) -> dict[str, str]:
    name = next(iter(lab.nodes))
    info = lab.api.call("GET", f"/api/v1/nodes/{name}")["status"]["nodeInfo"]
    server = lab.api.call("GET", "/version")["gitVersion"]
    return {
        "topowise": topowise.__version__,
        "kube-apiserver and kube-scheduler": server,
        "kubelet": info["kubeletVersion"],
        "etcd": _first_line(str(controlplane.binaries() / "etcd"), "--version").removeprefix("etcd Version: "),
        "Helm": _first_line(str(REPOSITORY / "hack/helm"), "version", "--short"),
    }


def _host(lab: Lab) -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} CPUs for {len(lab.nodes)} nodes and the control plane; load average {load:.0f}"


def _first_line(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return done.stdout.partition("\n")[0].strip()


def _git(*arguments: str) -> str:
    return _first_line("git", "-C", str(REPOSITORY), *arguments)

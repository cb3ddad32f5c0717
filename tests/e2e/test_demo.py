"""The tour of docs/quick-start.md as printed, in the demo that it starts; and the end of a demo."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.__main__ import LINK, REACH
from kept_demo import REPOSITORY, run, tour, typed
from sandbox import kept

PAGE = REPOSITORY / "docs/quick-start.md"
# The output of a command, after some retries: a person types slower than a scheduler decides.
SHOWS = {
    "make demo KEEP=1": "docs/quick-start.md",
    "kubectl topowise nodes": "metal-cxl",
    "kubectl get pod placed -o wide": "Running",
    "kubectl get events --field-selector involvedObject.name=waiting": "NUMA: no room that the kubelet could align",
    "kubectl topowise explain waiting": "Pod default/waiting: fits 0 of 5 nodes",
    "kubectl get pod waiting -o wide": "Running",
    "kubectl get pods -l app=batch -o wide": "batch-2   1/1     Running",
    "kubectl topowise explain wide": "node(s) were unschedulable: the node is cordoned",
    "kubectl topowise defrag -f hack/demo/try/wide.yaml": "default/batch-2   metal-cxl",
    "kubectl get pods -o wide": "urgent     1/1     Running",
    "make demo-stop": "Stopped",
}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
@pytest.mark.skipif(bool(kept.running(LINK)), reason="a demo is kept running in this checkout")
def test_the_tour_works_as_printed(environment: dict[str, str]) -> None:
    commands = tour(PAGE.read_text())
    printed = typed(commands[0], environment, SHOWS)
    assert REACH in printed
    address = re.search(r"dashboard +(http://\S+/ui)", printed)
    assert address is not None
    for command in commands[1:-1]:
        typed(command, environment, SHOWS)
    page = subprocess.run(["curl", "-sf", address[1]], capture_output=True, text=True, check=True)
    assert "<title>" in page.stdout
    again = run(["make", "demo", "KEEP=1"], environment)
    assert "a demo is running already; stop it with make demo-stop" in again.stderr
    typed(commands[-1], environment, SHOWS)
    assert not list(Path(environment["TMPDIR"]).iterdir())
    assert not LINK.is_symlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_ended_leaves_nothing(environment: dict[str, str], number: signal.Signals) -> None:
    temporary = Path(environment["TMPDIR"])
    with subprocess.Popen(
        [sys.executable, "-m", "demo", "--keep"], env=environment, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        while "API server is up" not in demo.stdout.readline():
            assert demo.poll() is None
        (directory,) = temporary.iterdir()
        demo.send_signal(number)
        assert demo.wait(30) == 130
    assert not list(temporary.iterdir())
    assert not _processes_of(directory)


def test_a_demo_that_fails_says_why_and_leaves_nothing(environment: dict[str, str]) -> None:
    script = (
        "import sys; from demo import __main__ as demo; from demo.cluster import Processes; start = Processes.start\n"
        "def broken(self, name, module, *arguments):\n"
        "    start(self, name, 'nosuch' if module == 'topowise_exporter' else module, *arguments)\n"
        "Processes.start = broken; sys.exit(demo.main())"
    )
    arguments = [sys.executable, "-c", script, "--keep"]
    ran = run(arguments, environment)
    assert ran.returncode == 1
    assert "No module named nosuch" in ran.stderr
    assert not list(Path(environment["TMPDIR"]).iterdir())


def _processes_of(directory: Path) -> list[str]:
    commands = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = process.read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in arguments:
            commands.append(arguments.decode())
    return commands

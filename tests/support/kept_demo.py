"""Commands of a page, typed into a demo that keeps running."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from demo.__main__ import LINK
from sandbox import kept

REPOSITORY = Path(__file__).parents[2]
# The demo runs no pods of a chart, its API server takes no protobuf, and it has no machines to log in to.
NOT_HERE = re.compile(
    r"kind |helm |kubectl (drain|uncordon|(create|label) namespace) |.* rollout status |systemctl"
    r"|rm -f /var/lib/kubelet"
)


def commands_of(text: str) -> list[str]:
    """Returns the lines that are typed after a `$`, of the consoles of a part of a page."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def tour(page: str) -> list[str]:
    """Returns the commands of the quick start that test_demo.py types, all of them."""
    return commands_of(page.partition("## Without a cluster")[2].partition("\n## ")[0])


def after_the_tour(page: str) -> str:
    """Returns the rest of the quick start, whose commands test_commands.py types, without those that are `NOT_HERE`."""
    return page.partition("## On kind")[2]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment in which kubectl finds this tree's plug-in, and the demo's directory is temporary."""
    binaries, temporary = tmp_path / "bin", Path("/tmp") / f"tour-{os.getpid()}"
    binaries.mkdir()
    temporary.mkdir()
    plugin = binaries / "kubectl-topowise"
    plugin.write_text(f'#!/bin/sh\nexec {sys.executable} -m topowise_scheduler.kubectl "$@"\n')
    plugin.chmod(0o755)
    own = {"PATH": f"{binaries}:{os.environ['PATH']}", "TMPDIR": str(temporary), "HOME": str(tmp_path)}
    yield {**os.environ, **own}
    kept.stop(LINK)
    shutil.rmtree(temporary)


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def typed(command: str, environment: dict[str, str], shows: Mapping[str, str]) -> str:
    """Returns the output, once it matches the page. `export` lines apply to later commands."""
    if command.startswith("export "):
        script = f'{command} && printf \'%s\\n\' "$KUBECONFIG" "$PATH"'
        said = run(["bash", "-c", script], environment)
        config, path = said.stdout.splitlines()
        # The plug-in of this tree stays the first.
        environment |= {"KUBECONFIG": config, "PATH": f"{environment['PATH'].partition(':')[0]}:{path}"}
        return said.stdout
    reads = command.startswith(("kubectl get", "kubectl topowise"))
    deadline = time.monotonic() + (60 if reads else 0)
    while True:
        ran = run(["bash", "-c", command], environment)
        if shows.get(command, "") in ran.stdout and (ran.returncode == 0 or "explain" in command):
            return ran.stdout
        assert time.monotonic() < deadline, f"{command}: {ran.stdout}{ran.stderr}"
        time.sleep(0.2)

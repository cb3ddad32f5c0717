"""Every command line of README and of the quick start runs as printed, or is listed here with its requirement.

The cluster is the demo's. Readers replace words in capitals and the forwarded port.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from demo.__main__ import LINK
from kept_demo import NOT_HERE, REPOSITORY, after_the_tour, commands_of, run
from sandbox import kept

README = (REPOSITORY / "README.md").read_text()
PAGE = (REPOSITORY / "docs/quick-start.md").read_text()

# These targets take minutes, or a container engine; a separate job runs each. The test checks that make knows them.
LONG = re.compile(r"make (images|load|test|check|e2e|fuzz|mutants|coverage|bench|venv|lab)\b")
DAEMONS = re.compile(r"topowise-\w+ (run|serve) ")


def manifests(page: str) -> dict[str, str]:
    """Manifests by kind and name of their first document."""
    texts = {}
    for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        document = next(iter(yaml.safe_load_all(text)), None) or {}
        texts[f"{document.get('kind')} {(document.get('metadata') or {}).get('name', '')}".strip()] = text
    return texts


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """The files that the pages tell a reader to write."""
    paths = {
        name: tmp_path / name for name in ("cache.yaml", "giant.yaml", "pod.yaml", "exporter.yaml", "scheduler.yaml")
    }
    cache = manifests(PAGE)["Pod cache"]
    paths["cache.yaml"].write_text(cache)
    paths["giant.yaml"].write_text(cache.replace("name: cache", "name: giant").replace("cpu: 2", "cpu: 40"))
    paths["pod.yaml"].write_text(cache)
    for kind in ("exporter", "scheduler"):
        paths[f"{kind}.yaml"].write_text(manifests(README)[f"{kind.capitalize()}Configuration"])
    scenario = {
        "machine": {"numa": [{"id": 0, "memory": 1 << 30, "cores": [{"socket": 0, "threads": [0]}]}]},
        "config": {},
    }
    paths["scenarios"] = tmp_path / "scenarios"
    paths["scenarios"].write_text(json.dumps(scenario) + "\n")
    return paths


def put_in(command: str, files: dict[str, Path], people: str) -> str:
    """The command with the reader's values."""
    command = command.partition("  #")[0]
    if "replay" in command:
        command = command.replace("FILE[.gz]", str(files["scenarios"]))
    kind = "exporter" if "exporter" in command else "scheduler"
    command = command.replace("FILE", str(files[f"{kind}.yaml"])).replace("http://127.0.0.1:8081", people)
    for name in ("cache.yaml", "pod.yaml"):
        command = command.replace(f"@{name}", f"@{files[name]}").replace(f" {name}", f" {files[name]}")
    command = re.sub(r"\b(NAME|NODE)\b", "metal-2s", command)
    return re.sub(r"\bPOD\b", "cache", command)


@pytest.mark.skipif(shutil.which("kubectl") is None or shutil.which("curl") is None, reason="no kubectl, or no curl")
@pytest.mark.skipif(bool(kept.running(LINK)), reason="a demo is kept running in this checkout")
def test_every_command_works_as_printed(environment: dict[str, str], files: dict[str, Path]) -> None:
    programs = Path(environment["PATH"].partition(":")[0])
    for name, module in (("topowise-exporter", "topowise_exporter"), ("topowise-scheduler", "topowise_scheduler")):
        program = programs / name
        program.write_text((programs / "kubectl-topowise").read_text().replace("topowise_scheduler.kubectl", module))
        program.chmod(0o755)
    blind = run(["make", "demo"], environment)
    assert "The same pods on the same nodes without knowing NUMA nodes" in blind.stdout, blind.stderr
    started = run(["make", "demo", "KEEP=1"], environment)
    address = re.search(r"dashboard +(http://\S+)/ui", started.stdout)
    assert address is not None, started.stderr
    environment["KUBECONFIG"] = str(REPOSITORY / ".demo/kubeconfig")
    # Pods of the demo, which a reader's cluster does not have.
    run(["kubectl", "delete", "pod", "cache", "giant", "--ignore-not-found"], environment)
    rest = after_the_tour(PAGE)
    failed = []
    for command in ["kubectl apply -f cache.yaml", *commands_of(README), *commands_of(rest)]:
        if NOT_HERE.match(command) or command.startswith(("make demo", "export ")):
            continue
        failed += _failure(command, put_in(command, files, address[1]), environment)
        if command == "kubectl topowise node NODE":
            # "Raise both CPU numbers ..., name the pod `giant`, and apply it."
            run(["kubectl", "apply", "-f", str(files["giant.yaml"])], environment)
    assert not failed, "\n".join(failed)


def _failure(printed: str, command: str, environment: dict[str, str]) -> list[str]:
    """The failure of a command after some retries; a person types slower than a scheduler decides."""
    if LONG.match(command):
        # For existing objects kubectl prints nothing.
        command = command.replace("make ", "make -n ", 1) + " && echo known"
    if DAEMONS.match(command):
        # With --check the same start goes as far as the configuration.
        command += " --check"
    deadline = time.monotonic() + 30
    while True:
        ran = subprocess.run(
            ["bash", "-c", command], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        # explain and doctor answer "no" with exit status 1, the service with a text.
        is_answered = ran.returncode == 0 or (
            ran.returncode == 1 and "topowise" in printed and "error" not in ran.stderr
        )
        if is_answered and ran.stdout and not ran.stdout.startswith('{"error"'):
            return []
        if time.monotonic() > deadline:
            return [f"{printed}: {command}: {ran.returncode}: {ran.stdout[-300:]}{ran.stderr[-300:]}"]
        time.sleep(0.5)

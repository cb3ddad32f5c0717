"""Every alert fires when it should and says what it should, by Prometheus' own rule tests (the folder alerts/)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent / "alerts"
FILES = sorted(HERE.glob("*.test.yaml"))
PROMTOOL = Path(__file__).parents[3] / "hack/promtool"


@pytest.fixture(scope="module")
def promtool() -> Path:
    if subprocess.run([PROMTOOL, "--find"], check=False, capture_output=True).returncode:
        pytest.skip("no promtool: set $PROMTOOL, or run hack/promtool --fetch")
    return PROMTOOL


def test_every_alert_has_a_firing_and_a_silent_example(chart: Path) -> None:
    rules = yaml.safe_load((chart / "alerts/topowise.yaml").read_text())["groups"]
    names = {rule["alert"] for group in rules for rule in group["rules"]}
    examples: dict[str, set[bool]] = {name: set() for name in names}
    for file in FILES:
        for scene in yaml.safe_load(file.read_text())["tests"]:
            for example in scene["alert_rule_test"]:
                examples[example["alertname"]].add(bool(example.get("exp_alerts")))
    assert {name for name, seen in examples.items() if seen != {True, False}} == set()


def run(promtool: Path, folder: Path, rules: Path, file: Path) -> subprocess.CompletedProcess[str]:
    tests = {"rule_files": [str(rules)], **yaml.safe_load(file.read_text())}
    written = folder / file.name
    written.write_text(yaml.safe_dump(tests, width=10_000))
    # It ends before a collection of garbage would pay.
    environment = {**os.environ, "GOGC": "off", "GOMAXPROCS": "1"}
    command = [promtool, "test", "rules", written]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_alerts_fire_as_the_examples_say(promtool: Path, chart: Path, tmp_path: Path, file: Path) -> None:
    done = run(promtool, tmp_path, chart / "alerts/topowise.yaml", file)
    assert done.returncode == 0, done.stdout + done.stderr

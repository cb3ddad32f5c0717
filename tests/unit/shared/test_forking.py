"""Daemons that are started by fork."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly

SCRIPT = """
import os, time
import forking
daemon = forking.template().start("http.server", ["0", "--bind", "127.0.0.1"], 2, dict(os.environ), ())
print(daemon.pid, flush=True)
time.sleep(600)
"""


def test_a_daemon_ends_with_the_tests_that_started_it() -> None:
    """Otherwise a run that is killed leaves daemons, which wait for a clock that nobody moves any more."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as tests:
        assert tests.stdout is not None
        daemon = os.pidfd_open(int(tests.stdout.readline()))
        tests.kill()
    ready, _, _ = select.select([daemon], [], [], 60)
    os.close(daemon)
    assert ready

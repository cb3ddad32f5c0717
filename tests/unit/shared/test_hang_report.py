from __future__ import annotations

import os
import subprocess
import sys

from hang_report import HangReport

SLEEPER = "import time\ndef waits_for_ever():\n    print(flush=True)\n    time.sleep(600)\nwaits_for_ever()"


def test_a_hanging_test_is_named_with_the_stacks_of_the_processes_that_it_started() -> None:
    with subprocess.Popen((sys.executable, "-c", SLEEPER), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reading, writing = os.pipe()
        report = HangReport(0.1, writing)
        report.began("test_that_hangs")
        text = b""
        while b"waits_for_ever" not in text and (more := os.read(reading, 65536)):
            text += more
        report.ended()
        process.kill()
    assert b"test_that_hangs" in text
    assert str(process.pid).encode() in text

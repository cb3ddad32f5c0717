"""Runs a module as `python -m` does, in the time of the test that started it."""

from __future__ import annotations

import runpy
import sys

from sandbox import simulated_time

if __name__ == "__main__":
    simulated_time.share()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

"""`make lab`: real kubelets on machines with NUMA nodes, up and down again, and what they prove."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from typing import Final

from images.application import REPOSITORY, ImageError
from lab import results, running, starting, testing
from lab.api import LabError
from lab.cluster import CLAIMED, STEERED, Lab
from lab.series import SETTINGS, STARTED
from sandbox import kept

_LAST: Final = REPOSITORY / "dist/lab.json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, summary in (
        ("up", "start the lab and leave it running"),
        ("test", "run all parts, on the running lab or a new lab"),
    ):
        each = verbs.add_parser(verb, help=summary)
        each.add_argument(
            "machines", nargs="*", default=["dual"], help="machines of hack/lab/machines, or machine files"
        )
    test = verbs.choices["test"]
    test.add_argument("--pods", type=int, default=300, help="number of pods per series")
    test.add_argument("--minutes", type=float, default=60.0, help="time limit after which series end")
    test.add_argument(
        "--part",
        action="append",
        choices=(*testing.NAMES, *testing.ALL_SERIES),
        help="run only this part; may be repeated",
    )
    test.add_argument("--policy", default="", choices=["", *SETTINGS], help="the kubelets' policies during parts")
    test.add_argument(
        "--started", type=float, default=STARTED, metavar="SHARE", help="the share of pods of a series that run"
    )
    test.add_argument(
        "--steered", type=int, default=STEERED, help="number of pods per node and policy in the part steered-binds"
    )
    test.add_argument(
        "--claimed", type=int, default=CLAIMED, help="number of pods with claims, for each way of the part claims"
    )
    test.add_argument(
        "--gate", action="store_true", help="topowise places the pods of series and of steered-binds by scheduling gate"
    )
    verbs.add_parser("down", help="stop the lab")
    verbs.add_parser("status", help="show the running processes")
    args = parser.parse_args(arguments)
    # `kill` is to end it as ^C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _do(args)
    except (LabError, ImageError, subprocess.SubprocessError) as exc:
        print(f"lab: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted", file=sys.stderr)
        return 130


def _do(args: argparse.Namespace) -> int:
    if args.verb == "up":
        _up(args.machines)
    elif args.verb == "test":
        return _test(args)
    elif args.verb == "down":
        print(f"lab: {running.end()} processes ended")
    else:
        _status()
    return 0


def _up(machines: list[str]) -> Lab:
    """Whatever goes wrong, nothing is left running."""
    if kept.running(running.LINK):
        raise LabError("a lab is running already; make lab ARGS=down ends it")
    try:
        return starting.up(machines)
    except BaseException:
        running.end()
        raise


def _test(args: argparse.Namespace) -> int:
    """Runs the test; a lab that the test has started ends with the test."""
    chosen = args.part or testing.NAMES
    is_own = not kept.running(running.LINK)
    start = time.monotonic()
    try:
        lab = _up(args.machines) if is_own else starting.again()
        lab.steered, lab.claimed, lab.by_gate = args.steered, args.claimed, args.gate
        deadline = start + 60 * args.minutes
        run = testing.Test(lab, chosen, args.pods, deadline, _save, args.policy, args.started).run()
    finally:
        if is_own:
            running.end()
    print(f"lab: {'passed' if run.passed else 'FAILED'}; {_LAST}")
    return 0 if run.passed else 1


def _save(run: results.Results) -> None:
    _LAST.parent.mkdir(exist_ok=True)
    _LAST.write_bytes(results.as_json(run))


def _status() -> None:
    directory, _ = running.plan()
    print(f"KUBECONFIG={directory / 'kubeconfig'}")
    for name, pid in kept.running(running.LINK).items():
        print(f"{name:28} {pid}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

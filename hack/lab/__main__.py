"""`make lab`: real kubelets on emulated NUMA machines, up and down again, and what they prove."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from typing import Final

import msgspec

from images.application import REPOSITORY, ImageError
from lab import pages, results, running, starting, testing
from lab.cluster import CLAIMED, STEERED, Lab
from lab.errors import LabError
from lab.native import cluster
from lab.series import STARTED
from lab.settings import SETTINGS
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
        each.add_argument("--native", action="store_true", help="kubelets in name spaces of this machine, as root")
        each.add_argument(
            "--before", default="", metavar="COMMIT", help="the commit from which the part upgrade starts"
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
        "--steered", type=int, default=STEERED, help="number of pods per guest and policy in the part steered-binds"
    )
    test.add_argument(
        "--claimed", type=int, default=CLAIMED, help="number of pods with claims, for each way of the part claims"
    )
    test.add_argument("--onto", action="store_true", help=f"keep the results of other parts in {_LAST.name}")
    test.add_argument("--note", action="append", default=[], help="a sentence for the page, about this run")
    test.add_argument("--record", action="store_true", help="record the run, and write docs/lab.md")
    verbs.add_parser("down", help="stop the lab")
    verbs.add_parser("status", help="show the running processes")
    verbs.add_parser("page", help="write docs/lab.md from the recorded run again")
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
        _up(args.machines, args.before, native=args.native)
    elif args.verb == "test":
        return _test(args)
    elif args.verb == "down":
        print(f"lab: {running.end()} processes ended")
    elif args.verb == "page":
        pages.write(results.read(REPOSITORY / pages.RECORDED))
    else:
        _status()
    return 0


def _up(machines: list[str], before: str, *, native: bool) -> Lab:
    """Whatever goes wrong, nothing is left running."""
    if kept.running(running.LINK):
        raise LabError("a lab is running already; make lab ARGS=down ends it")
    try:
        return cluster.up(machines) if native else starting.up(machines, before)
    except BaseException:
        running.end()
        raise


def _test(args: argparse.Namespace) -> int:
    """Runs the test; a lab that the test has started ends with the test."""
    chosen = args.part or testing.NAMES
    earlier = results.read(_LAST) if args.onto and _LAST.exists() else None
    is_own = not kept.running(running.LINK)
    start = time.monotonic()
    try:
        lab = _up(args.machines, args.before, native=args.native) if is_own else starting.again()
        lab.steered, lab.claimed = args.steered, args.claimed
        deadline = start + 60 * args.minutes
        test = testing.Test(
            lab, chosen, args.pods, deadline, lambda run: _save(run, earlier), args.policy, args.started
        )
        run = _save(msgspec.structs.replace(test.run(), notes=tuple(args.note)), earlier)
    finally:
        if is_own:
            running.end()
    print(f"lab: {'passed' if run.passed else 'FAILED'}; {_LAST}")
    if args.record:
        pages.record(run)
    return 0 if run.passed else 1


def _save(run: results.Results, earlier: results.Results | None) -> results.Results:
    whole = run if earlier is None else results.merged(earlier, run)
    _LAST.parent.mkdir(exist_ok=True)
    _LAST.write_bytes(results.as_json(whole))
    return whole


def _status() -> None:
    directory, plan = running.plan()
    print(f"KUBECONFIG={directory / 'kubeconfig'}")
    for name, pid in kept.running(running.LINK).items():
        print(f"{name:28} {pid}")
    for name, ports in plan.guests.items():
        print(f"guest {name}: ssh -p {ports.ssh} root@127.0.0.1, agent http://127.0.0.1:{ports.agent}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

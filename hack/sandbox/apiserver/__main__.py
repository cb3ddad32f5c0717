"""`python -m sandbox.apiserver`: the embedded API server as a process, until it is interrupted.

Prints its URL on stdout once it serves, so a script can read the line and go on.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from sandbox.apiserver.errors import StatusError
from sandbox.apiserver.server import ApiServer


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox.apiserver", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free port)")
    parser.add_argument("--kubeconfig-out", type=Path, metavar="FILE", help="write a kubeconfig here")
    parser.add_argument(
        "--crd",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="CRDs to serve: files or folders",
    )
    parser.add_argument("--token", help="require this bearer token")
    parser.add_argument("--window", type=int, default=4096, help="watch events kept for each resource (default: 4096)")
    return parser


async def serve(options: argparse.Namespace) -> None:
    """Serves until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = ApiServer(port=options.port, token=options.token, window=options.window)
    server.install_crds(*options.crd)
    async with server:
        if options.kubeconfig_out:
            server.kubeconfig(options.kubeconfig_out)
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        asyncio.run(serve(options))
    except (OSError, StatusError) as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

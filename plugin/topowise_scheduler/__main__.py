"""topowise-scheduler: `serve` answers schedulers, `replay` tells what kubelets would do, `token` renews a token."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from topowise import __version__
from topowise.runtime import output


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit status."""
    return output.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = output.Parser(
        prog="topowise-scheduler", description="Answers schedulers by predicting what each node's kubelet will do."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="the service")
    output.add_config(serve, "a SchedulerConfiguration")
    serve.set_defaults(command=_serve)
    replay = commands.add_parser("replay", help="what a kubelet would do, for scenarios as JSON lines")
    replay.add_argument("file", metavar="FILE[.gz]", help="one scenario a line, - is stdin; results go to stdout")
    replay.set_defaults(command=_replay)
    token = commands.add_parser("token", help="keeps a short-lived token of another service account in a directory")
    token.add_argument("--account", required=True, metavar="NAME", help="a service account of the pod's namespace")
    token.add_argument(
        "--directory", required=True, metavar="DIR", help="where token, ca.crt and namespace are written"
    )
    token.set_defaults(command=_token)
    return parser


def _replay(options: argparse.Namespace) -> int:
    from topowise_scheduler.report.replay import main_replay

    return main_replay(options.file)


def _token(options: argparse.Namespace) -> int:
    from topowise.kube import account_token
    from topowise.runtime import log

    log.set_up()
    return asyncio.run(account_token.run(options.account, Path(options.directory)))


def _serve(options: argparse.Namespace) -> int:
    from topowise.runtime import config, log
    from topowise_scheduler.configuration import SchedulerConfiguration

    settings = config.load(SchedulerConfiguration, options.config)
    if options.check:
        return output.check(options, settings)

    import uvloop

    from topowise_scheduler import serve

    log.set_up(settings.logging.verbosity, settings.logging.format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve.run(settings))


if __name__ == "__main__":
    sys.exit(main())

"""topowise-exporter: `run` the daemon, print the object `once`, or show the `machine`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

import msgspec

from topowise import __version__
from topowise.errors import SourceError, TopowiseError

if TYPE_CHECKING:
    from topowise_exporter.publish.topology import Observation


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except TopowiseError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `| head` has seen enough.
        sys.stderr.close()
        return 0
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="topowise-exporter", description="Publishes a node's NodeResourceTopology.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="the daemon")
    run.add_argument("--config", required=True, metavar="FILE", help="an ExporterConfiguration")
    run.set_defaults(command=_run)

    once = commands.add_parser("once", help="print the object that would be published")
    _add_roots(once)
    once.add_argument("--podresources-socket", metavar="PATH", default=None, help="the kubelet's socket")
    once.add_argument("--kubelet-config", metavar="FILE", default="", help="the kubelet's --config file")
    once.add_argument("--node-name", metavar="NAME", default="", help="default: $NODE_NAME or the host name")
    once.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml")
    once.set_defaults(command=_once)

    machine = commands.add_parser("machine", help="print the hardware as read from /sys")
    _add_roots(machine)
    machine.add_argument("-o", "--output", choices=("json",), default="json")
    machine.set_defaults(command=_machine)
    return parser


def _add_roots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sysfs-root", metavar="DIR", default="/sys")
    parser.add_argument("--procfs-root", metavar="DIR", default="/proc")


def _run(options: argparse.Namespace) -> int:
    # Imports are local so that `once` and `machine` do not pay for the daemon.
    from topowise.runtime import config, log
    from topowise_exporter import daemon
    from topowise_exporter.configuration import ExporterConfiguration

    settings = config.load(ExporterConfiguration, options.config)
    log.set_up(settings.logging.verbosity, settings.logging.format)
    return asyncio.run(daemon.run(settings))


def _once(options: argparse.Namespace) -> int:
    from topowise_exporter.configuration import ExporterConfiguration
    from topowise_exporter.publish.topology import build

    named = ExporterConfiguration(apiVersion="topowise.io/v1alpha1", node_name=options.node_name)
    topology, problems = build(named.resolved_node_name(), asyncio.run(_look(options)))
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    _print(msgspec.to_builtins(topology), options.output)
    return 0


async def _look(options: argparse.Namespace) -> Observation:
    from topowise_exporter import machine
    from topowise_exporter.kubelet.model import Allocatable
    from topowise_exporter.kubelet.podresources import DEFAULT_SOCKET, PodResources
    from topowise_exporter.observe import kubelet_settings
    from topowise_exporter.publish.topology import Observation

    read = machine.scan(options.sysfs_root, options.procfs_root)
    for problem in read.problems:
        print(f"warning: {problem}", file=sys.stderr)
    kubelet = kubelet_settings(options.kubelet_config)
    async with PodResources(options.podresources_socket or DEFAULT_SOCKET) as podresources:
        try:
            return Observation(read, kubelet, await podresources.allocatable(), await podresources.pods())
        except SourceError as exc:
            print(f"warning: {exc}; printing the node without allocations", file=sys.stderr)
            return Observation(read, kubelet, Allocatable(), ())


def _machine(options: argparse.Namespace) -> int:
    from topowise_exporter.machine import report, scan

    read = scan(options.sysfs_root, options.procfs_root)
    for problem in read.problems:
        print(f"warning: {problem}", file=sys.stderr)
    _print(report(read), options.output)
    return 0


def _print(document: object, form: str) -> None:
    if form == "json":
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        import yaml

        yaml.safe_dump(document, sys.stdout, sort_keys=False)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""topowise-exporter: `run` the daemon or `steer` pods, print the object `once`, or show the `machine`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from topowise import __version__, documents
from topowise.errors import SourceError
from topowise.runtime import output

if TYPE_CHECKING:
    from topowise_exporter.configuration import ExporterConfiguration
    from topowise_exporter.publish.topology import Observation


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    return output.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = output.Parser(prog="topowise-exporter", description="Publishes a node's NodeResourceTopology.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="the daemon")
    output.add_config(run, "an ExporterConfiguration")
    run.set_defaults(command=_run)

    steer = commands.add_parser("steer", help="the marker plug-in of steering")
    output.add_config(steer, "an ExporterConfiguration")
    steer.set_defaults(command=_steer)

    once = commands.add_parser("once", help="print the object that would be published")
    once.add_argument("--config", metavar="FILE", default="", help="an ExporterConfiguration; options go before it")
    _add_roots(once)
    once.add_argument("--podresources-socket", metavar="PATH", default="", help="the kubelet's socket")
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
    parser.add_argument("--sysfs-root", metavar="DIR", default="", help="default: /sys")
    parser.add_argument("--procfs-root", metavar="DIR", default="", help="default: /proc")


def _run(options: argparse.Namespace) -> int:
    # Imports are local so that `once` and `machine` do not pay for the daemon.
    from topowise.kube.credentials import IN_CLUSTER
    from topowise.runtime import config, log
    from topowise_exporter.configuration import ExporterConfiguration

    settings = config.load(ExporterConfiguration, options.config)
    if options.check:
        return output.check(options, settings)

    from topowise_exporter import daemon

    log.set_up(settings.logging.verbosity, settings.logging.format)
    if IN_CLUSTER in os.environ and not settings.client.kubeconfig:
        # With a kubeconfig there may be programs to run for credentials, which keep files of theirs.
        confine()
    return asyncio.run(daemon.run(settings))


def _steer(options: argparse.Namespace) -> int:
    from topowise.runtime import config, log
    from topowise_exporter.configuration import ExporterConfiguration

    settings = config.load(ExporterConfiguration, options.config)
    if options.check:
        return output.check(options, settings)

    from topowise_exporter.steering import daemon

    log.set_up(settings.logging.verbosity, settings.logging.format)
    return asyncio.run(daemon.run(settings))


def confine() -> None:
    """Give up writing files and starting programs, once nothing needs that any more."""
    from topowise_exporter import landlock, triggers

    # Uevents logs a missing libudev later.
    with contextlib.suppress(ImportError):
        triggers.libudev()
    landlock.apply()


def _once(options: argparse.Namespace) -> int:
    from topowise_exporter.publish.topology import build

    settings = _settings_of_once(options)
    published = build(
        settings.resolved_node_name(), asyncio.run(_observe(settings)), settings.publish, settings.exclude
    )
    for problem in published.problems:
        output.note(f"warning: {problem}")
    output.write(documents.to_text(published.topology, options.output))
    return 0


def _settings_of_once(options: argparse.Namespace) -> ExporterConfiguration:
    from topowise.runtime import config
    from topowise_exporter.configuration import ExporterConfiguration

    settings = (
        config.load(ExporterConfiguration, options.config) if options.config else config.default(ExporterConfiguration)
    )
    fields = ("node_name", "sysfs_root", "procfs_root", "podresources_socket")
    changes = {name: value for name in fields if (value := getattr(options, name))}
    if options.kubelet_config or not options.config:
        changes["kubelet"] = msgspec.structs.replace(settings.kubelet, config_file=options.kubelet_config)
    if options.podresources_socket or not options.config:
        changes["kubelet_root"] = _kubelet_root(options.podresources_socket or settings.podresources_socket)
    return msgspec.structs.replace(settings, **changes)


def _kubelet_root(socket: str) -> str:
    """The directory with the state files, two above the socket; "" if they are not there."""
    from topowise_exporter.kubelet.podresources import socket_path
    from topowise_exporter.kubelet.state_files import CPU_STATE

    path = Path(socket_path(socket))
    root = path.parent.parent
    if (root / CPU_STATE).exists():
        return str(root)
    if path.exists():
        output.note(f"warning: {root / CPU_STATE}: missing; printing what the socket alone reports")
    return ""


async def _observe(settings: ExporterConfiguration) -> Observation:
    from topowise_exporter import machine, zones
    from topowise_exporter.kubelet.allocations import Allocations
    from topowise_exporter.kubelet.podresources import PodResources
    from topowise_exporter.kubelet.settings import Source
    from topowise_exporter.observe import Observer, Reading
    from topowise_exporter.publish.topology import Observation

    source = Source(settings.kubelet)
    kubelet = await source.read()
    async with PodResources(settings.podresources_socket) as podresources:
        observer = Observer(settings, podresources, source)
        try:
            reading = await observer.observe()
        except SourceError as exc:
            output.note(f"warning: {exc}; printing the node without allocations")
            scanned = machine.scan(settings.sysfs_root, settings.procfs_root)
            reading = Reading(Observation(scanned, kubelet, Allocations()))
        for about, problem in reading.problems.items():
            output.note(f"warning: {about}: {problem}")
        if reading.doubts:
            output.note(f"warning: the kubelet is not ready: {', '.join(sorted(reading.doubts))}")
        for namespace, name in sorted(reading.withheld):
            output.note(f"warning: pod {namespace}/{name} is being admitted; left out")
    seen = reading.observation
    for problem in seen.machine.problems:
        output.note(f"warning: {problem}")
    for node in zones.high_nodes(seen.machine):
        output.note(f"warning: NUMA {node}: no kubelet aligns to ids beyond 63; left out of the zones")
    return seen


def _machine(options: argparse.Namespace) -> int:
    from topowise_exporter.machine import as_json, scan

    scanned = scan(options.sysfs_root or "/sys", options.procfs_root or "/proc")
    for problem in scanned.problems:
        output.note(f"warning: {problem}")
    output.write(documents.to_text(as_json(scanned), options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line. The module imports little, so that `--help` and errors in the command line are fast."""

from __future__ import annotations

import argparse
from typing import Final

from topowise.runtime.output import Parser
from topowise_scheduler import strategy_names

_MAX_COUNT: Final = 1000
_DIGITS: Final = len(str(_MAX_COUNT))
_MIN_INTERVAL_S: Final = 0.5
_MAX_INTERVAL_S: Final = 3600.0

SORTS: Final = ("name", "cpu", "memory", "devices", "fragmentation", "changed")

_PODS: Final = "manifests of pods or of workloads"
_OBJECTS: Final = "saved objects instead of the cluster's"
_EPILOG: Final = (
    "Exit status: 0 success, or yes; 1 no: a pod fits on no node (explain, fits, simulate, defrag), or doctor has "
    "found an error or a warning; 2 the answer is not known, or the command line is wrong."
)


def parser(version: str) -> Parser:
    """The parser; its result has the name of the command as `command`."""
    plugin = Parser(
        prog="kubectl topowise", description="NUMA nodes of a cluster, and the pods that fit on them.", epilog=_EPILOG
    )
    plugin.add_argument("--version", action="version", version=version)
    commands = plugin.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _nodes(_command(commands, "nodes", "free resources of each NUMA node"))
    _node(_command(commands, "node", "one machine as a picture: CPUs, memory, devices, and the pods that hold them"))
    _explain(_command(commands, "explain", "why each node's kubelet would admit a pod, or not"))
    _fits(_command(commands, "fits", "how many more pods like this one fit"))
    _simulate(_command(commands, "simulate", "where the pods of manifests would go, and which pods fit nowhere"))
    _defrag(_command(commands, "defrag", "the fewest pods to move so that more pods like this one fit"))
    _doctor(_command(commands, "doctor", "harmful settings of kubelets, exporters and schedulers, with corrections"))
    completion = commands.add_parser("completion", help="the hook for kubectl's completion")
    completion.add_argument("shell", choices=("kubectl",))
    help_command = commands.add_parser("help", help="this text, or the help of a command")
    help_command.add_argument("about", metavar="COMMAND", nargs="?", choices=[*commands.choices])
    return plugin


def _command(commands: argparse._SubParsersAction[Parser], name: str, summary: str) -> Parser:
    description = f"{summary[0].upper()}{summary[1:]}."
    command = commands.add_parser(name, help=summary, description=description, epilog=_EPILOG)
    command.add_argument("--context", default="", metavar="NAME", help="the kubectl context to use")
    command.add_argument("--kubeconfig", default="", metavar="FILE", help="the kubeconfig to use")
    return command


def _nodes(command: Parser) -> None:
    command.add_argument("names", metavar="NAME", nargs="*", help="only these nodes")
    _selector(command)
    command.add_argument(
        "--sort-by", choices=SORTS, default="name", help="most free, most fragmented, or longest unchanged first"
    )
    command.add_argument("--no-headers", action="store_true", help="print no header row")
    _file(command, _OBJECTS)
    _output(command, "table", "wide", "json", "yaml", "name")
    _watch(command)


def _node(command: Parser) -> None:
    command.add_argument("name", metavar="NAME", help="the node")
    _file(command, _OBJECTS)
    command.add_argument("--pods", action="store_true", help="include pods assigned since the report, as predicted")
    _output(command, "text", "svg", "wide", "json", "yaml")
    _watch(command)


def _explain(command: Parser) -> None:
    _pod(command, _PODS)
    command.add_argument("--node", action="append", default=[], metavar="NAME", help="only this node; may be repeated")
    _selector(command)
    command.add_argument("--all", action="store_true", help="a row for each node, however many nodes there are")
    command.add_argument("--hints", action="store_true", help="the hints of each manager, and their merged hints")
    command.add_argument("--service", default="", metavar="URL", help="ask the topowise-scheduler at this address")
    _cluster(command)
    _output(command, "table", "wide", "json", "yaml", "name")
    _watch(command)


def _fits(command: Parser) -> None:
    _pod(command, _PODS)
    _selector(command)
    command.add_argument("--all", action="store_true", help="a row for each node, however many nodes there are")
    _cluster(command)
    _output(command, "table", "wide", "json", "yaml", "name")
    _watch(command)


def _simulate(command: Parser) -> None:
    _pod(command, "manifests: pods, and deployments, stateful sets, jobs with all their replicas")
    _cluster(command)
    command.add_argument(
        "--strategy",
        choices=strategy_names.NAMES,
        default="TightFit",
        help="scoring.strategy of the service (%(default)s)",
    )
    _output(command, "table", "wide", "json", "yaml")


def _defrag(command: Parser) -> None:
    _pod(command, "the manifest of one pod or workload")
    _cluster(command)
    command.add_argument("--count", type=_number, metavar="N", help="pods to fit; default: as in the manifest")
    command.add_argument("--max-moves", type=_number, default=10, metavar="K", help="move at most K pods (%(default)s)")
    _output(command, "table", "json", "yaml")


def _number(text: str) -> int:
    """A number of pods."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:_DIGITS]) <= _MAX_COUNT or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number from 1 to {_MAX_COUNT}")
    return int(text)


def _doctor(command: Parser) -> None:
    _file(command, f"{_OBJECTS}; checks that need the cluster are skipped")
    command.add_argument(
        "--scheduler-config", default="", metavar="FILE", help="kube-scheduler's configuration, which is checked too"
    )
    command.add_argument(
        "--patience",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="time until a report that does not match its node is read again (%(default)s)",
    )
    _output(command, "table", "json", "yaml")


def _pod(command: Parser, content: str) -> None:
    command.add_argument("pod", metavar="POD", nargs="?", help="a pod, or deploy/NAME or the like, instead of -f")
    _file(command, content)
    command.add_argument("-n", "--namespace", default="", metavar="NAME", help="the namespace of pods without one")


def _file(command: Parser, content: str) -> None:
    text = f"{content}; a file, a directory, a URL, or - for stdin; may be repeated"
    command.add_argument("-f", "--file", action="append", default=[], metavar="FILE", help=text)


def _selector(command: Parser) -> None:
    text = "nodes with these labels, as for kubectl get"
    command.add_argument("-l", "--selector", default="", metavar="LABELS", help=text)


def _watch(command: Parser) -> None:
    command.add_argument("-w", "--watch", action="store_true", help="repeat the command, and print changed answers")
    command.add_argument(
        "--interval", type=_seconds, default=5.0, metavar="SECONDS", help="pause of --watch (%(default)s)"
    )


def _seconds(text: str) -> float:
    """The pause of --watch, bounded because each round reads the whole cluster."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not _MIN_INTERVAL_S <= seconds <= _MAX_INTERVAL_S:
        limits = f"from {_MIN_INTERVAL_S:g} to {_MAX_INTERVAL_S:g}"
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number {limits}")
    return seconds


def _cluster(command: Parser) -> None:
    command.add_argument(
        "--nodes-file",
        action="append",
        default=[],
        metavar="FILE",
        help="saved NodeResourceTopologies, Nodes and Pods instead of the cluster's; may be repeated",
    )


def _output(command: Parser, *forms: str) -> None:
    command.add_argument("-o", "--output", choices=forms, default=forms[0], help="output format (%(default)s)")

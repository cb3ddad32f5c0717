"""The command line as argparse knows it. Importing this imports nothing else, so that `--help` and typos are quick."""

from __future__ import annotations

import argparse
from typing import Final

from topowise.runtime.output import Parser
from topowise_scheduler import strategy_names

_MOST: Final = 1000
_DIGITS: Final = len(str(_MOST))
_LEAST_S: Final = 0.5
_MOST_S: Final = 3600.0

SORTS: Final = ("name", "cpu", "memory", "devices", "fragmentation", "changed")

_EPILOG: Final = (
    "Exit status: 0 done, or yes; 1 no: a pod fits nowhere (explain, fits, simulate, defrag), or something is wrong "
    "(doctor); 2 it could not be found out, or the command line is wrong."
)


def parser(version: str) -> Parser:
    """The parser; the name of the command is `command` of what it returns."""
    made = Parser(
        prog="kubectl topowise", description="The NUMA nodes of a cluster, and what fits on them.", epilog=_EPILOG
    )
    made.add_argument("--version", action="version", version=version)
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _nodes(_command(commands, "nodes", "what the NUMA nodes of each node can still give"))
    _node(_command(commands, "node", "one machine as a picture: CPUs, memory, devices, and whose they are"))
    _explain(_command(commands, "explain", "why each node's kubelet would take a pod, or not"))
    _fits(_command(commands, "fits", "how many more pods like this one there is room for"))
    _simulate(_command(commands, "simulate", "where these manifests would go, and which of their pods nowhere"))
    _defrag(_command(commands, "defrag", "the fewest pods to move so that more pods like this one fit"))
    _doctor(_command(commands, "doctor", "what is set up in a way that will hurt, and how to mend it"))
    completion = commands.add_parser("completion", help="the hook for kubectl's completion")
    completion.add_argument("shell", choices=("kubectl",))
    told = commands.add_parser("help", help="this, or what there is to know of a command")
    told.add_argument("about", metavar="COMMAND", nargs="?", choices=[*commands.choices])
    return made


def _command(commands: argparse._SubParsersAction[Parser], name: str, what: str) -> Parser:
    made = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".", epilog=_EPILOG)
    made.add_argument("--context", default="", metavar="NAME", help="kubectl's context, instead of the current one")
    made.add_argument("--kubeconfig", default="", metavar="FILE", help="kubectl's kubeconfig, instead of the usual one")
    return made


def _nodes(made: Parser) -> None:
    made.add_argument("names", metavar="NAME", nargs="*", help="these nodes only")
    _selector(made)
    made.add_argument("--sort-by", choices=SORTS, default="name", help="most free, most fragmented, longest unchanged")
    made.add_argument("--no-headers", action="store_true", help="rows alone")
    _file(made, "saved objects instead of the cluster's")
    _output(made, "table", "wide", "json", "yaml", "name")
    _watch(made)


def _node(made: Parser) -> None:
    made.add_argument("name", metavar="NAME", help="the node")
    _file(made, "saved objects instead of the cluster's")
    made.add_argument("--pods", action="store_true", help="with the pods assigned since the report, as they will lie")
    _output(made, "text", "svg", "wide", "json", "yaml")
    _watch(made)


def _explain(made: Parser) -> None:
    _pod(made, "manifests of pods, or of what makes pods")
    made.add_argument("--node", action="append", default=[], metavar="NAME", help="of this node only; may be repeated")
    _selector(made)
    made.add_argument("--all", action="store_true", help="a row for each node, however many there are")
    made.add_argument("--hints", action="store_true", help="every hint of each manager, and what they merge to")
    made.add_argument("--service", default="", metavar="URL", help="ask a running topowise-scheduler at this address")
    _cluster(made)
    _output(made, "table", "wide", "json", "yaml", "name")
    _watch(made)


def _fits(made: Parser) -> None:
    _pod(made, "manifests of pods, or of what makes pods")
    _selector(made)
    made.add_argument("--all", action="store_true", help="a row for each node, however many there are")
    _cluster(made)
    _output(made, "table", "wide", "json", "yaml", "name")
    _watch(made)


def _simulate(made: Parser) -> None:
    _pod(made, "manifests: pods, and deployments, stateful sets, jobs with all their replicas")
    _cluster(made)
    made.add_argument(
        "--strategy",
        choices=strategy_names.NAMES,
        default="TightFit",
        help="scoring.strategy of the service (%(default)s)",
    )
    _output(made, "table", "wide", "json", "yaml")


def _defrag(made: Parser) -> None:
    _pod(made, "the manifest of one pod, or of what makes pods")
    _cluster(made)
    made.add_argument("--count", type=_number, metavar="N", help="so many more; as many as the manifest if not given")
    made.add_argument("--max-moves", type=_number, default=10, metavar="K", help="move no more pods (%(default)s)")
    _output(made, "table", "json", "yaml")


def _number(text: str) -> int:
    """A number of pods."""
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:_DIGITS]) <= _MOST or len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number from 1 to {_MOST}")
    return int(text)


def _doctor(made: Parser) -> None:
    _file(made, "saved objects instead of the cluster's; what only the cluster knows is left out")
    made.add_argument("--scheduler-config", default="", metavar="FILE", help="kube-scheduler's configuration, too")
    made.add_argument(
        "--patience",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="until a report that does not match its node is looked at again (%(default)s)",
    )
    _output(made, "table", "json", "yaml")


def _pod(made: Parser, what: str) -> None:
    made.add_argument("pod", metavar="POD", nargs="?", help="a pod, deploy/NAME or the like, instead of -f")
    _file(made, what)
    made.add_argument("-n", "--namespace", default="", metavar="NAME", help="of pods that name none")


def _file(made: Parser, what: str) -> None:
    told = f"{what}; a file, a directory, a URL, or - for stdin; may be repeated"
    made.add_argument("-f", "--file", action="append", default=[], metavar="FILE", help=told)


def _selector(made: Parser) -> None:
    told = "nodes with these labels, as for kubectl get"
    made.add_argument("-l", "--selector", default="", metavar="LABELS", help=told)


def _watch(made: Parser) -> None:
    made.add_argument("-w", "--watch", action="store_true", help="ask again and again, and show what is new")
    made.add_argument("--interval", type=_seconds, default=5.0, metavar="SECONDS", help="of --watch (%(default)s)")


def _seconds(text: str) -> float:
    """A time between two questions: a whole cluster is read each time."""
    try:
        given = float(text)
    except ValueError:
        given = 0.0
    if not _LEAST_S <= given <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number from {_LEAST_S:g} to {_MOST_S:g}")
    return given


def _cluster(made: Parser) -> None:
    made.add_argument(
        "--nodes-file",
        action="append",
        default=[],
        metavar="FILE",
        help="saved NodeResourceTopologies, Nodes and Pods instead of the cluster's; may be repeated",
    )


def _output(made: Parser, *forms: str) -> None:
    made.add_argument("-o", "--output", choices=forms, default=forms[0], help="%(default)s unless given")

"""The command line. The module imports little, so that `--help` and errors in the command line are fast."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from topowise.runtime import output
from topowise.runtime.output import Parser
from topowise_scheduler.kubelet.configuration import TOPOLOGY_POLICIES, TOPOLOGY_SCOPES
from topowise_scheduler.verdicts import strategy_names

_MAX_COUNT: Final = 1000
_DIGITS: Final = len(str(_MAX_COUNT))

SORTS: Final = ("name", "cpu", "memory", "devices", "fragmentation", "changed")

_PODS: Final = "manifests of pods, or of any kind with a pod template"
_OBJECTS: Final = "saved objects instead of the cluster's"
# The flags of `kubectl options` that select the API server and the user: kubectl gets them unchanged.
_KUBECTL: Final[Sequence[tuple[tuple[str, ...], str, str]]] = (
    (("--as",), "NAME", "username to impersonate"),
    (("--as-group",), "NAME", "group to impersonate; may be repeated"),
    (("--as-uid",), "UID", "UID to impersonate"),
    (("--cache-dir",), "DIR", "default cache directory of kubectl"),
    (("--certificate-authority",), "FILE", "certificate authority of the API server"),
    (("--client-certificate",), "FILE", "client certificate for TLS"),
    (("--client-key",), "FILE", "client key for TLS"),
    (("--cluster",), "NAME", "the kubeconfig cluster to use"),
    (("--context",), "NAME", "the kubeconfig context to use"),
    (("--disable-compression",), "", "opt out of response compression"),
    (("--insecure-skip-tls-verify",), "", "do not verify the certificate of the API server"),
    (("--kubeconfig",), "FILE", "the kubeconfig to use"),
    (("--match-server-version",), "", "require the server version to match the version of kubectl"),
    (("--password",), "TEXT", "password for basic authentication"),
    (("--request-timeout",), "DURATION", "time to wait for a single request, such as 30s; 0 for the default, 60s"),
    (("-s", "--server"), "URL", "address and port of the API server"),
    (("--tls-server-name",), "NAME", "server name to verify the certificate with"),
    (("--token",), "TEXT", "bearer token for authentication"),
    (("--user",), "NAME", "the kubeconfig user to use"),
    (("--username",), "NAME", "username for basic authentication"),
    (("-v", "--v"), "LEVEL", "log level of kubectl, whose log goes to stderr"),
    (("--vmodule",), "LEVELS", "log levels of kubectl by file"),
    (("--warnings-as-errors",), "", "treat warnings of the server as errors"),
)
_EPILOG: Final = (
    "Exit status: 0 success, or yes; 1 no: a pod fits on no node (explain, fits, simulate, plan, defrag), or doctor "
    "has found an error or a warning; 2 the answer is not known, or the command line is wrong. "
    "`kubectl topowise help` lists the global flags, which all commands take before or after their name."
)


class Plugin(Parser):
    """The parser; as for kubectl, an error of the command line is a single line without the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the process with status 2."""
        output.note(f"error: {message}; see `{self.prog} --help`")
        self.exit(2)


class _Pass(argparse.Action):
    """Appends the flag with its value to `kubectl`, the list of flags for kubectl."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        value = f"={values}" if self.nargs != 0 else ""
        namespace.kubectl = [*namespace.kubectl, f"{self.option_strings[-1]}{value}"]


class _Watch(argparse.Action):
    """Refuses `-w`, which earlier versions had."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        parser.error(f"{'/'.join(self.option_strings)} is gone, expected `watch -n 5 {parser.prog} ...`")


def in_order(words: Sequence[str], plugin: Parser) -> list[str]:
    """The command line with the flags before the command moved behind it: `-n a explain b` is `explain -n a b`."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        flag = plugin._option_string_actions.get(words[at])
        at += 1 if flag is None or flag.nargs == 0 else 2
    return [*words[at : at + 1], *words[:at], *words[at + 1 :]]


@functools.cache
def parser(version: str) -> Parser:
    """The parser; its result has the name of the command as `command`. Parsing does not change it."""
    plugin = Plugin(
        prog="kubectl topowise", description="NUMA nodes of a cluster, and the pods that fit on them.", epilog=_EPILOG
    )
    plugin.add_argument("--version", action="version", version=version)
    _global(plugin.add_argument_group("global flags, as of kubectl"), is_shown=True)
    commands = plugin.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _nodes(_command(commands, "nodes", "free resources of each NUMA node"))
    _node(_command(commands, "node", "one machine as a picture: CPUs, memory, devices, and the pods that hold them"))
    _explain(_command(commands, "explain", "why each node's kubelet would admit a pod, or not"))
    _fits(_command(commands, "fits", "how many more pods like this one fit"))
    _simulate(_command(commands, "simulate", "where the pods of manifests would go, and which pods fit nowhere"))
    _plan(_command(commands, "plan", "what a change of kubelets, machines or schedulers would do, decided offline"))
    _defrag(_command(commands, "defrag", "the fewest pods to move so that more pods like this one fit"))
    _doctor(_command(commands, "doctor", "harmful settings of kubelets, exporters and schedulers, with corrections"))
    help_command = commands.add_parser("help", help="this text, or the help of a command")
    help_command.add_argument("about", metavar="COMMAND", nargs="?", choices=[*commands.choices])
    return plugin


def _command(commands: argparse._SubParsersAction[Plugin], name: str, summary: str) -> Parser:
    description = f"{summary[0].upper()}{summary[1:]}."
    command = commands.add_parser(name, help=summary, description=description, epilog=_EPILOG)
    command.set_defaults(kubectl=[])
    _global(command, is_shown=False)
    return command


def _global(command: argparse._ActionsContainer, *, is_shown: bool) -> None:
    """Adds the global flags; the help of a command leaves them out, as that of kubectl's commands does."""
    for flags, metavar, text in _KUBECTL:
        shown = text if is_shown else argparse.SUPPRESS
        values: dict[str, Any] = {"metavar": metavar} if metavar else {"nargs": 0}
        command.add_argument(*flags, action=_Pass, dest="kubectl", default=[], help=shown, **values)
    text = "namespace of objects without one" if is_shown else argparse.SUPPRESS
    command.add_argument("-n", "--namespace", default="", metavar="NAME", help=text)


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
    _pod(command, "manifests: pods, and objects with pod templates with all their replicas")
    _cluster(command)
    command.add_argument(
        "--strategy",
        choices=strategy_names.NAMES,
        default="TightFit",
        help="scoring.strategy of the service (%(default)s)",
    )
    command.add_argument("--restart", action="store_true", help="restart all kubelets instead of placing pods")
    command.add_argument("--kubelet-version", default="", metavar="V", help="restart the kubelets with this version")
    command.add_argument("--policy", choices=TOPOLOGY_POLICIES, help="restart with this topologyManagerPolicy")
    command.add_argument("--scope", choices=TOPOLOGY_SCOPES, help="restart with this topologyManagerScope")
    _output(command, "table", "wide", "json", "yaml")


def _plan(command: Parser) -> None:
    _pod(command, "manifests of pods to place")
    _cluster(command)
    text = (
        "a machine by `topowise-exporter machine`, and the number of such nodes (1, with --nodes-file 0); "
        "may be repeated"
    )
    command.add_argument("--machine", action="append", default=[], metavar="FILE[*N]", help=text)
    text = "the KubeletConfiguration of the nodes of --machine"
    command.add_argument("--kubelet-config", default="", metavar="FILE", help=text)
    text = "what changes, as KEY=VALUE with spaces between; may be repeated, each is a column"
    command.add_argument("--change", action="append", default=[], metavar="CHANGE", help=text)
    text = "find the smallest combination of the --change options after which all pods fit"
    command.add_argument("--smallest", action="store_true", help=text)
    text = "the pods that run: stay, restart with their kubelets, replace all of them, or ignore (%(default)s)"
    command.add_argument("--existing", choices=("stay", "restart", "replace", "ignore"), default="stay", help=text)
    command.add_argument("--count", type=_number, metavar="N", help="copies of each pod; default: as in the manifest")
    command.add_argument("--fill", action="store_true", help="as many copies of each pod as fit, in the given order")
    text = "a trace: CSV with the columns time, shape and duration"
    command.add_argument("--trace", default="", metavar="FILE", help=text)
    text = "with --smallest and --trace, the longest time that a pod may wait"
    command.add_argument("--max-wait", type=_wait, default=None, metavar="SECONDS", help=text)
    _output(command, "table", "json", "yaml", "html")


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


def _wait(text: str) -> float:
    """The longest wait of --smallest."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number of seconds")
    return seconds


def _pod(command: Parser, content: str) -> None:
    text = "a pod, or KIND/NAME of any kind with a pod template, instead of -f"
    command.add_argument("pod", metavar="POD", nargs="?", help=text)
    _file(command, content)
    text = "all waiting pods of all namespaces; without it and without POD and -f, those of the namespace"
    command.add_argument("-A", "--all-namespaces", action="store_true", help=text)
    text = "let the API server set defaults in the manifests and validate them, as a dry run"
    command.add_argument("--server-side", action="store_true", help=text)


def _file(command: Parser, content: str) -> None:
    text = f"{content}; a file, a directory, or - for stdin; may be repeated"
    command.add_argument("-f", "--file", action="append", default=[], metavar="FILE", help=text)


def _selector(command: Parser) -> None:
    text = "nodes with these labels, as for kubectl get"
    command.add_argument("-l", "--selector", default="", metavar="LABELS", help=text)


def _watch(command: Parser) -> None:
    command.add_argument("-w", "--watch", action=_Watch, nargs=0, help=argparse.SUPPRESS)


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

"""`kubectl topowise completion`: the hook by which kubectl completes the words of a plug-in.

kubectl runs an executable `kubectl_complete-topowise` with the words so far, the last of which is to be completed, and
reads a candidate a line and ":<directive>" at the end, as cobra prints them. `kubectl-topowise __complete` answers so.
Source: k8s.io/kubectl/pkg/cmd/plugin (SetupPluginCompletion), cobra's ShellCompDirective.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from topowise.errors import TopowiseError
from topowise.text import escaped
from topowise_scheduler.presentation.kubectl.console import Answer, Console

_FILES: Final = 0
_NO_FILES: Final = 4
_MOST: Final = 500
_NODE: Final = "node"
_NAMED: Final = (_NODE, "namespace", "context")

_HOOK: Final = """\
#!/bin/sh
# kubectl's completion runs this for `kubectl topowise`: an executable file kubectl_complete-topowise on PATH.
exec kubectl-topowise __complete "$@"
"""


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    del options, console
    return Answer(_HOOK)


def complete(words: Sequence[str], parser: argparse.ArgumentParser) -> Answer:
    """The candidates for the last word; none for an invalid command line, as errors would disturb the typing."""
    *before, last = words or [""]
    directive = _NO_FILES
    candidates: Mapping[str, str] = {}
    try:
        # argparse has no public way to read a parser.
        commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        if not before:
            helps = {action.dest: action.help or "" for action in commands._choices_actions}
            candidates = _options(parser) if last.startswith("-") else helps
        elif before[0] in commands.choices:
            directive, candidates = _argument(commands.choices[before[0]], before[1:], last)
    except TopowiseError:
        pass
    lines = [f"{name}\t{summary}" if summary else name for name, summary in candidates.items() if _is_typed(name, last)]
    return Answer("".join(f"{line}\n" for line in [*lines, f":{directive}"]))


def _argument(parser: argparse.ArgumentParser, before: Sequence[str], last: str) -> tuple[int, Mapping[str, str]]:
    """Completes a word of a command: an option, the value of an option, or the argument."""
    option = parser._option_string_actions.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        if option.metavar == "FILE":
            return _FILES, {}
        if option.choices is not None:
            return _NO_FILES, dict.fromkeys(map(str, option.choices), "")
        return _NO_FILES, dict.fromkeys(_names(option.dest, parser, before) if option.dest in _NAMED else (), "")
    if last.startswith("-"):
        return _NO_FILES, _options(parser)
    about = next((action for action in parser._actions if not action.option_strings), None)
    if about is None:
        return _NO_FILES, {}
    if about.choices is not None:
        return _NO_FILES, dict.fromkeys(map(str, about.choices), "")
    kind, slash, _ = last.rpartition("/")
    known = _NODE if about.dest in ("name", "names") else kind or "pod"
    return _NO_FILES, {f"{kind}{slash}{name}": "" for name in _names(known, parser, before)}


def _is_typed(name: str, last: str) -> bool:
    """Whether the name completes the word, and a shell reads the name as it is written."""
    return name.startswith(last) and escaped(name) == name


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    return {
        name: (action.help or "").replace("%(default)s", str(action.default))
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    }


def _names(kind: str, parser: argparse.ArgumentParser, before: Sequence[str]) -> Iterator[str]:
    """Names of nodes, namespaces, contexts, pods or workloads, from the files or the cluster of the words so far.

    Raises SourceError.
    """
    from topowise import nrt
    from topowise.errors import SourceError
    from topowise.kube import paths
    from topowise_scheduler.presentation.kubectl import names, objects
    from topowise_scheduler.presentation.kubectl.source import Kubectl, decoded

    values = _values(parser, before)
    # If the command has both options, -f are manifests.
    files = values.get("nodes_file" if "--nodes-file" in parser._option_string_actions else "file", [])
    kubectl = Kubectl(*(values.get(name, [""])[-1] for name in ("context", "kubeconfig")))
    namespace = values.get("namespace", [""])[-1]
    if kind == _NODE and files:
        yield from (one.topology.metadata.name for one in objects.from_files(files).reports)
        return
    if kind == "context":
        yield from kubectl.contexts()
        return
    path = {_NODE: nrt.PATH, "namespace": paths.NAMESPACES}.get(kind, "")
    path = path or names.listing(kind, namespace or kubectl.namespace())
    versions = [path, nrt.OLD_PATH] if path == nrt.PATH else [path]
    answer = kubectl.served(*[f"{one}?limit={_MOST}" for one in versions])
    if isinstance(answer, SourceError):
        raise answer
    yield from (item["metadata"]["name"] for item in decoded(answer, path).get("items") or ())


def _values(parser: argparse.ArgumentParser, before: Sequence[str]) -> dict[str, list[str]]:
    """The values of the options so far."""
    values: dict[str, list[str]] = {}
    for word, value in pairwise(before):
        option = parser._option_string_actions.get(word)
        if option is not None and option.nargs != 0:
            values.setdefault(option.dest, []).append(value)
    return values

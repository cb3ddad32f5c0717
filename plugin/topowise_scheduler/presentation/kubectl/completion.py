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
from topowise.runtime.output import Parser
from topowise.text import escaped
from topowise_scheduler.presentation.kubectl import arguments
from topowise_scheduler.presentation.kubectl.console import Answer, Console
from topowise_scheduler.presentation.kubectl.source import Kubectl

_FILES: Final = 0
_NO_FILES: Final = 4
_NODE: Final = "node"
_GLOBAL: Final = ("kubectl", "namespace")

_HOOK: Final = """\
#!/bin/sh
# kubectl's completion runs this for `kubectl topowise`: an executable file kubectl_complete-topowise on PATH.
exec kubectl-topowise __complete "$@"
"""


def run(options: argparse.Namespace, console: Console) -> Answer:
    """The command."""
    del options, console
    return Answer(_HOOK)


def complete(words: Sequence[str], plugin: Parser) -> Answer:
    """The candidates for the last word; none for an invalid command line, as errors would disturb the typing."""
    *before, last = words or [""]
    before = arguments.in_order(before, plugin)
    # argparse has no public way to read a parser.
    commands = next(action for action in plugin._actions if isinstance(action, argparse._SubParsersAction))
    is_before_command = not before or before[0].startswith("-")
    directive, candidates = _NO_FILES, dict[str, str]()
    try:
        if is_before_command or before[0] in commands.choices:
            parser = plugin if is_before_command else commands.choices[before[0]]
            directive, candidates = _argument(parser, before, last, _options(plugin))
    except TopowiseError:
        pass
    lines = [f"{name}\t{summary}" if summary else name for name, summary in candidates.items() if _is_typed(name, last)]
    return Answer("".join(f"{line}\n" for line in [*lines, f":{directive}"]))


def _argument(
    parser: argparse.ArgumentParser, before: Sequence[str], last: str, flags: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """Completes a word of a command: an option, the value of an option, or the argument."""
    option = parser._option_string_actions.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        if option.metavar == "FILE":
            return _FILES, {}
        if option.choices is not None:
            return _NO_FILES, dict.fromkeys(map(str, option.choices), "")
        return _NO_FILES, dict.fromkeys(_values_of(option, parser, before, last), "")
    if last.startswith("-"):
        return _NO_FILES, {**flags, **_options(parser)}
    about = next((action for action in parser._actions if not action.option_strings), None)
    if isinstance(about, argparse._SubParsersAction):
        return _NO_FILES, {action.dest: action.help or "" for action in about._choices_actions}
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
        if name.startswith("--") and action.help != argparse.SUPPRESS
    }


def _values_of(
    option: argparse.Action, parser: argparse.ArgumentParser, before: Sequence[str], last: str
) -> Sequence[str]:
    """The values of `--node`, and those of a global flag that kubectl completes. Raises SourceError."""
    if option.dest == _NODE:
        return _names(_NODE, parser, before)
    if option.dest in _GLOBAL:
        return Kubectl().completions(*_flags(parser, before[:-1]), option.option_strings[-1], last)
    return ()


def _names(kind: str, parser: argparse.ArgumentParser, before: Sequence[str]) -> Sequence[str]:
    """Names of nodes, pods or workloads, from the files or the cluster of the words so far. Raises SourceError."""
    # If the command has both options, -f are manifests.
    files_of = "--nodes-file" if "--nodes-file" in parser._option_string_actions else "--file"
    pairs = [(parser._option_string_actions.get(word), value) for word, value in pairwise(before)]
    files = [value for option, value in pairs if option is not None and files_of in option.option_strings]
    if kind == _NODE and files:
        from topowise_scheduler.presentation.kubectl import objects

        return [report.topology.metadata.name for report in objects.from_files(files).reports]
    resource = "noderesourcetopologies" if kind == _NODE else kind
    return Kubectl().completions(*_flags(parser, before), resource, "")


def _flags(parser: argparse.ArgumentParser, before: Sequence[str]) -> Iterator[str]:
    """The global flags so far with their values."""
    for word, value in pairwise([*before, ""]):
        flag, equals, _ = word.partition("=")
        option = parser._option_string_actions.get(flag)
        if option is not None and option.dest in _GLOBAL:
            yield word if equals or option.nargs == 0 else f"{option.option_strings[-1]}={value}"

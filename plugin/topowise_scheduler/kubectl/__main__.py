"""kubectl-topowise, found by kubectl as `kubectl topowise`."""

from __future__ import annotations

import argparse
import sys

import msgspec

from topowise import __version__
from topowise.runtime import cli


def main(arguments: list[str] | None = None) -> int:
    """The command line; its exit status."""
    return cli.run(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kubectl topowise", description="The NUMA nodes of a cluster.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    nodes = commands.add_parser("nodes", help="what each NUMA node can still give")
    nodes.add_argument("-f", "--file", help="saved NodeResourceTopologies instead of the cluster's; - is stdin")
    nodes.add_argument("-o", "--output", choices=("table", "json", "yaml", "name"), default="table")
    nodes.set_defaults(command=_nodes)
    return parser


def _nodes(options: argparse.Namespace) -> int:
    from topowise_scheduler.kubectl import source
    from topowise_scheduler.kubectl.nodes import table

    found = source.topologies(options.file)
    if options.output == "name":
        print("\n".join(one.metadata.name for one in found))
    elif options.output == "json":
        print(msgspec.json.format(msgspec.json.encode({"items": found}), indent=2).decode())
    elif options.output == "yaml":
        print(msgspec.yaml.encode({"items": found}).decode(), end="")
    elif not found:
        print("No NodeResourceTopologies found: is an exporter running?", file=sys.stderr)
    else:
        text, problems = table(found)
        print(text)
        for problem in problems:
            print(f"warning: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())

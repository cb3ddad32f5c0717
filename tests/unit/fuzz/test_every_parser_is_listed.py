"""Code of the exporter that reads or decodes foreign bytes is part of a parser of `make fuzz`.

The code is found by what it calls: the calls that open a file, list a directory, or decode JSON, YAML and protobuf. The
samples of all parsers run under a profile, so a parser is listed only if its code really runs.
"""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from fuzzing import hold
from parsers import parsers

REPOSITORY = Path(__file__).resolve().parents[3]
# The exporter, and what it decodes with. Wire formats are generated; kube and runtime have no file of the node.
ROOTS = (REPOSITORY / "exporter/topowise_exporter", REPOSITORY / "proto/topowise")
ELSEWHERE = ("proto/topowise/wire/", "proto/topowise/kube/", "proto/topowise/runtime/", "proto/topowise/files.py")
OPENS = {"read_regular", "open_regular", "listdir", "readlink", "iterdir", "scandir", "read_text", "read_bytes", "open"}
DECODES = {"FromString", "ParseFromString", "b64decode", "decode_lazily"}
MODULES_DECODE = {
    "documents.load",
    "documents.load_all",
    "msgspec.convert",
    "msgspec.json.decode",
    "msgspec.yaml.decode",
}
# Answers of the API server: no file or socket of the node.
OF_THE_API_SERVER = {
    "exporter/topowise_exporter/own_node.py",
    "exporter/topowise_exporter/publish/writer.py",
    "exporter/topowise_exporter/steering/lease.py",
}
# Reads what this process has encoded itself.
OWN_BYTES = {"exporter/topowise_exporter/machine/scan.py"}

Place = tuple[str, int, str]


def _is_json_decoder(node: ast.AST) -> bool:
    return "Decoder(" in ast.unparse(node) and ast.unparse(node).endswith(".decode")


def _decoder_names(tree: ast.Module) -> set[str]:
    """Names of the module that are decoders."""
    return {
        target.id
        for statement in tree.body
        if isinstance(statement, ast.Assign) and _is_json_decoder(statement.value)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _is_reader(call: ast.Call, decoders: set[str]) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in OPENS | DECODES | decoders
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr in OPENS | DECODES | decoders or ast.unparse(function) in MODULES_DECODE


def readers(source: str, path: str) -> Iterator[Place]:
    """Yields path, first line and name of the functions that read or decode."""
    tree = ast.parse(source)
    decoders = _decoder_names(tree)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            isinstance(node, ast.Call) and _is_reader(node, decoders) for node in ast.walk(function)
        ):
            first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
            yield path, first, function.name


def _of_the_product() -> Iterator[Place]:
    for root in ROOTS:
        for module in sorted(root.rglob("*.py")):
            path = module.relative_to(REPOSITORY).as_posix()
            if not path.startswith(ELSEWHERE) and path not in OF_THE_API_SERVER | OWN_BYTES:
                yield from readers(module.read_text(), path)


def _run() -> set[Place]:
    """Returns the functions that run while all parsers read their samples."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for parser in parsers():
            for sample in parser.samples:
                hold(parser, sample, seconds=60.0)
    finally:
        sys.setprofile(before)
    return {
        (Path(code.co_filename).relative_to(REPOSITORY).as_posix(), code.co_firstlineno, code.co_name)
        for code in codes
        if Path(code.co_filename).is_relative_to(REPOSITORY)
    }


def test_code_that_reads_or_decodes_is_run_by_a_parser() -> None:
    found = set(_of_the_product())
    assert len(found) > 20
    missing = sorted(f"{path}:{line} {name}" for path, line, name in found - _run())
    assert not missing, "run by no parser of tests/support/parsers.py: " + ", ".join(missing)


def test_a_new_reader_is_found() -> None:
    source = """
        _decode = msgspec.json.Decoder(Thing).decode

        def one(text): return _decode(text)
        def two(text): return msgspec.json.decode(text, type=Thing)
        async def three(event): return pb.Event.FromString(event)
        @cache
        def four(path): return files.read_regular(path)
        def five(text): return text.decode()
    """
    found = list(readers(textwrap.dedent(source), "x.py"))
    assert [(line, name) for _, line, name in found] == [(4, "one"), (5, "two"), (6, "three"), (7, "four")]

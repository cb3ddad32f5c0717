"""The program as a process: start time, loaded modules, pipes and colours, and its help."""

from __future__ import annotations

import os
import pty
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from topowise_scheduler.kubectl import __main__ as program

from .conftest import Save

PROGRAM = (sys.executable, "-m", "topowise_scheduler.kubectl")
HERE = Path(__file__).parent


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, env=os.environ | environment, check=False, timeout=60
    )


def _cpu_of_children() -> float:
    """CPU seconds; the wall time of a busy machine is longer."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.nightly
def test_nodes_starts_fast_without_heavy_modules(saved: Save) -> None:
    words = ["nodes", "-f", saved()]
    best = 60.0
    for _ in range(5):
        began = _cpu_of_children()
        assert run(*words).returncode == 0
        best = min(best, _cpu_of_children() - began)
    # 0.12 s on an idle machine; the bound also suits a slow machine.
    assert best < 0.6
    heavy = ("numpy", "rich", "kubernetes", "aiohttp", "grpc", "asyncio", "topowise_scheduler.verdicts.engine")
    code = (
        "import sys; from topowise_scheduler.kubectl.__main__ import main; main(sys.argv[1:]); "
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    for more in (words, ["node", "metal-a", "-f", saved()]):
        done = subprocess.run([sys.executable, "-c", code, *more], capture_output=True, text=True, check=True)
        assert done.stderr.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error(saved: Save) -> None:
    for words in (["nodes"], ["node", "metal-c", "-o", "svg"]):
        command = " ".join([*PROGRAM, *words, "-f", saved()])
        done = subprocess.run(
            ["bash", "-c", f"{command} | true; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=True
        )
        assert done.stdout == "0\n"
        assert done.stderr == ""


def test_stdin_and_a_svg_in_a_pipe(saved: Save) -> None:
    text = Path(saved()).read_bytes()
    done = subprocess.run(
        [*PROGRAM, "node", "metal-a", "-f", "-", "-o", "svg"], input=text, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"<svg ")
    assert done.stdout.endswith(b"</svg>\n")


def on_terminal(words: list[str], **environment: str) -> str:
    """The program's output on a terminal of 80 columns."""
    import fcntl
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
    process = subprocess.Popen(
        [*PROGRAM, *words], stdout=child, stderr=subprocess.DEVNULL, env=inherited | {"TERM": "xterm"} | environment
    )
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.wait(10)
    os.close(parent)
    return shown.decode()


@pytest.mark.nightly
def test_only_terminals_get_colours_unless_disabled(saved: Save) -> None:
    words = ["explain", "-f", str(HERE / "manifests.yaml"), "--nodes-file", saved()]
    assert "\x1b[" in on_terminal(words)
    assert "\x1b[" not in on_terminal(words, NO_COLOR="1")
    assert "\x1b[" not in on_terminal(words, TERM="dumb")
    assert "\x1b[" not in run(*words).stdout


def test_ascii_encodings_get_ascii_output(saved: Save) -> None:
    for words in (["nodes", "-f", saved()], ["node", "metal-a", "-f", saved()]):
        assert run(*words, PYTHONIOENCODING="ascii").stdout.isascii()


def test_documents_are_utf_8_and_tables_use_the_encoding(saved: Save, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    drawn = subprocess.run(
        [*PROGRAM, "node", "metal-a", "-o", "svg", "-f", saved()], capture_output=True, check=True, env=environment
    )
    assert "·" in drawn.stdout.decode()
    odd = tmp_path / "odd.yaml"
    odd.write_text(Path(saved()).read_text().replace("nvidia.com/gpu", "firma.de/größe"))
    for form in ("wide", "json"):
        done = run("nodes", "-o", form, "-f", str(odd), PYTHONIOENCODING="ascii")
        assert (done.returncode, "firma.de/" in done.stdout, "Traceback" in done.stderr) == (0, True, False)


def test_help_is_of_a_command_too(capfd: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            program.main(list(words))
        assert ended.value.code == 0
        return capfd.readouterr().out

    assert said() == said("help") == said("--help")
    assert said("help", "fits") == said("fits", "--help") != said()

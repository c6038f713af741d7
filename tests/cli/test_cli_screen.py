"""Lines that fit their terminal: 80 columns, 60, a file, and a terminal that has ASCII alone."""

from __future__ import annotations

import codecs
import dataclasses
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from measurements import measurement, record_of
from rich.console import Console
from rich.table import Table
from thousand import write_sweep

from sweeper.cli import app, screen
from sweeper.cli.screen import prose
from sweeper.core.measurement import Quality
from sweeper.results.trial_line import trial_line

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}
NAME = "007 bs22 res fp32"
LOSS = Quality(key="k", samples=60_000, seconds=2.5, train_loss=0.5, val_loss=0.25, metrics={"accuracy": 0.9})
RECORD = dataclasses.replace(
    record_of(measurement(data=0.5, windows={"disturbances": ("other processes took cores",)})), quality=LOSS
)


def test_a_file_gets_everything():
    line = trial_line(RECORD, NAME, 2.0)
    for part in (NAME, "per epoch", "2x~", "loss 0.25", "accuracy 0.9", "input-bound"):
        assert part in line
    assert line.endswith("disturbed (other processes took cores)")
    assert "accuracy" not in trial_line(RECORD, NAME, 2.0, equal={"accuracy"})


@pytest.mark.parametrize(("quiet", "expected"), [(0.0, ["one", "  (two)", "  (three)"]), (60.0, ["one"])])
def test_a_file_gets_the_status_when_nothing_else_comes(monkeypatch, quiet: float, expected: list[str]):
    monkeypatch.setattr(screen, "QUIET_SECONDS", quiet)
    out = io.StringIO()
    with screen.LiveScreen(Console(file=out)) as shown:
        shown.line("one")
        shown.update("two")
        shown.update("three")
    assert out.getvalue().splitlines() == expected


@pytest.mark.parametrize("width", [60, 70, 80, 90, 100, 120, 150])
def test_a_terminal_gets_what_matters_most(width: int):
    line = trial_line(RECORD, NAME, 2.0, width)
    assert len(line) <= width
    assert NAME in line
    assert "2x~" in line
    assert ("input-bound" in line) == (width >= 70)
    assert ("loss 0.25" in line) == (width >= 80)
    assert ("per epoch" in line) == (width >= 150)


def test_a_long_line_breaks_between_words_and_is_indented():
    file = io.StringIO()
    words = "  Next: " + "a-word " * 30 + "https://example.org/" + "x" * 70
    prose(Console(file=file, force_terminal=True, width=60, highlight=False), words)
    first, *others = file.getvalue().splitlines()
    assert first.startswith("  Next: a-word ")
    assert all(line.startswith("    ") and line[4] != " " for line in others)
    assert all(len(line) <= 60 for line in [first, *others[:-1]])
    assert others[-1].endswith("x" * 70)
    assert " ".join([first, *others]).split() == words.split()


def test_a_file_s_lines_are_not_broken():
    file = io.StringIO()
    prose(Console(file=file, width=60), "word " * 40)
    assert len(file.getvalue().splitlines()) == 1


def show(home: Path, width: int) -> list[str]:
    """What `sweeper show` prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "sweeper", "show", "toy", "--home", str(home)],
        stdin=theirs,
        stdout=theirs,
        env={name: value for name, value in ENV.items() if name != "COLUMNS"} | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                found += os.read(ours, 65536)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", found.decode()).splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_a_summary_fits(tmp_path: Path, width: int):
    write_sweep(tmp_path, "toy", trials=12, with_series=False)
    lines = show(tmp_path, width)
    commands = [line for line in lines if f"sweeper {line.split()[2:3] or ['']}" in line or "--home" in line]
    assert len(commands) == 3
    assert [line for line in lines if len(line.rstrip()) > width and line not in commands] == []
    assert any(line.startswith("toy: ") for line in lines)


def test_a_dash_and_a_bar_have_a_plain_form_each():
    codecs.register_error("sweeper.ascii", app._as_ascii)
    text = "".join(app._ASCII)
    assert {"–", "█", "├", "└", "◄"} <= set(text)
    plain = text.encode("ascii", "sweeper.ascii").decode()
    assert "\\" not in plain
    assert "–".encode("ascii", "sweeper.ascii") == b"-"
    # What nobody thought of is at least no error.
    assert "猫".encode("ascii", "sweeper.ascii") == b"\\u732b"


def test_a_terminal_without_unicode_gets_ascii(tmp_path: Path):
    write_sweep(tmp_path, "toy", trials=3)

    def printed(**world: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", "show", "toy", "--trial", "1", "--home", str(tmp_path)],
            env={**ENV, **world},
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    plain = printed(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert plain.isascii()
    assert "\\u" not in plain
    full = printed(PYTHONUTF8="1")
    assert "█" in full
    assert [len(line) for line in full.splitlines()] == [len(line) for line in plain.splitlines()]


def test_brackets_and_colons_are_text():
    out = screen.console()
    table = Table(box=None, show_header=False)
    table.add_row("act=[relu,gelu] data=[/data] :x:")
    with out.capture() as captured:
        out.print(table)
        out.print("[bold] :x:")
    lines = [line.strip() for line in captured.get().splitlines()]
    assert lines == ["act=[relu,gelu] data=[/data] :x:", "[bold] :x:"]


def test_a_reader_of_the_errors_who_is_gone_ends_nothing():
    ours, theirs = os.pipe()
    os.close(ours)
    code = "from sweeper.cli.screen import console\nconsole(stderr=True).print('one')\nprint('two')"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=ENV)
    os.close(theirs)
    assert (done.returncode, done.stdout) == (0, b"two\n")

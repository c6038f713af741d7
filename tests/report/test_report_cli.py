"""`sweeper report`: where it writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import odd_sweeps as odd
import pytest

from sweeper.cli.report import report
from sweeper.errors import EnvironmentStopError, UserError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    odd.finished(tmp_path / "home")
    return tmp_path / "home"


def test_each_format_is_written_and_said(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report("toy", home, "html", None)
    report("toy", home, "md", tmp_path / "summary.md")
    page, summary = capsys.readouterr().out.splitlines()
    assert page == f"Written to {home}/sweeps/toy/report.html."
    assert summary == f"Written to {tmp_path}/summary.md."
    assert (tmp_path / "summary.md").read_text().startswith("## toy: Trial 2 ")


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_dash_prints_the_report_alone(
    home: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report("toy", home, form, Path("-"))
    printed = capsys.readouterr().out
    report("toy", home, form, tmp_path / "report")
    assert printed == (tmp_path / "report").read_text()
    assert not (tmp_path / "-").exists()


def test_the_template_engine_is_imported_only_for_a_page() -> None:
    code = "import sys, sweeper.cli.app, sweeper.cli.report; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd.begun(tmp_path)
    report("toy", tmp_path, "png", tmp_path / "figures")
    assert capsys.readouterr().out == "Nothing to draw yet: no trial has finished.\n"


def test_a_wrong_format_or_place_is_one_line(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"`--format` must be one of html, md, png, but got 'htm'. Did you mean"
    ):
        report("toy", home, "htm", None)
    for place in (tmp_path, tmp_path / "no" / "such.html"):
        with pytest.raises(UserError, match="`--out` must be a file in a folder that exists"):
            report("toy", home, "html", place)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="`--out` must be a folder for `--format png`"):
        report("toy", home, "png", tmp_path / "file")
    with pytest.raises(UserError, match="a folder for `--format png`, but got standard output"):
        report("toy", home, "png", Path("-"))
    with pytest.raises(UserError, match="There is no sweep called 'tou'"):
        report("tou", home, "html", None)
    with pytest.raises(EnvironmentStopError, match="cannot write in /proc"):
        report("toy", home, "md", Path("/proc/summary.md"))

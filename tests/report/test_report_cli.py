"""`sweeper report`: where it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import odd_sweeps as odd
import pytest

from sweeper.cli.report import report_command
from sweeper.errors import EnvironmentStopError, UserError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    odd.finished(tmp_path / "home")
    return tmp_path / "home"


def test_each_format_is_written_and_said(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_command(home, "toy", "html", None)
    report_command(home, "toy", "md", tmp_path / "summary.md")
    page, summary = capsys.readouterr().out.splitlines()
    assert page == f"Written to {home}/sweeps/toy/report.html."
    assert summary == f"Written to {tmp_path}/summary.md."
    assert (tmp_path / "summary.md").read_text().startswith("## toy: Trial 2 ")


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_dash_prints_the_report_alone(
    home: Path, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report_command(home, "toy", form, Path("-"))
    printed = capsys.readouterr().out
    report_command(home, "toy", form, tmp_path / "report")
    assert printed == (tmp_path / "report").read_text()
    assert not (tmp_path / "-").exists()


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd.begun(tmp_path)
    report_command(tmp_path, "toy", "png", tmp_path / "figures")
    assert capsys.readouterr().out == "Nothing to draw yet: no trial has finished.\n"


def test_a_wrong_format_or_place_is_one_line(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"`--format` must be one of html, md, png, but got 'htm'. Did you mean"
    ):
        report_command(home, "toy", "htm", None)
    for place in (tmp_path, tmp_path / "no" / "such.html"):
        with pytest.raises(UserError, match="`--out` must be a file in a folder that exists"):
            report_command(home, "toy", "html", place)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="`--out` must be a folder for `--format png`"):
        report_command(home, "toy", "png", tmp_path / "file")
    with pytest.raises(UserError, match="a folder for `--format png`, but got standard output"):
        report_command(home, "toy", "png", Path("-"))
    with pytest.raises(UserError, match="There is no sweep called 'tou'"):
        report_command(home, "tou", "html", None)
    with pytest.raises(EnvironmentStopError, match="cannot write in /proc"):
        report_command(home, "toy", "md", Path("/proc/summary.md"))

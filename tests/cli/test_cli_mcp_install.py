"""The entry of `sweeper mcp` in the settings of coding agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweeper.cli.app import app
from sweeper.cli.mcp_install import AGENTS, install
from sweeper.errors import UserError

COMMAND = ("python", "train.py", "--lr", "0.1")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which Cursor is used; no other agent is here."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    made = tmp_path / "a project"
    (made / ".cursor").mkdir(parents=True)
    return made


def settings(folder: Path) -> Path:
    return folder / ".cursor" / "mcp.json"


def test_the_difference_is_shown_and_written_after_a_yes(folder: Path) -> None:
    before = {"theme": "dunkel – ü", "mcpServers": {"other": {"command": "x"}}}
    settings(folder).write_text(json.dumps(before), encoding="utf-8")
    settings(folder).chmod(0o600)
    questions: list[str] = []
    lines = list(install(COMMAND, folder, lambda question: not questions.append(question)))
    assert questions == ["Write this for Cursor?"]
    assert any(line.startswith("+") and '"sweeper"' in line for line in lines)
    after = json.loads(settings(folder).read_text(encoding="utf-8"))
    assert after["theme"] == before["theme"]
    assert settings(folder).stat().st_mode & 0o777 == 0o600
    assert after["mcpServers"]["other"] == {"command": "x"}
    entry = after["mcpServers"]["sweeper"]
    assert entry["args"] == ["mcp", "--folder", str(folder), "--", *COMMAND]
    assert list(install(COMMAND, folder, lambda _: True)) == [
        f"Cursor: {settings(folder)} has this entry already."
    ]


def test_without_a_yes_nothing_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(install(COMMAND, folder, lambda _: False))
    assert lines[-1] == "Cursor: nothing was changed."
    assert not settings(folder).exists()
    # Nobody answers where standard input is at its end.
    done = CliRunner().invoke(app, ["mcp", "--install", "--folder", str(folder), "--", *COMMAND])
    assert done.exit_code == 0, done.output
    assert "nothing was changed" in done.output
    assert not settings(folder).exists()


@pytest.mark.parametrize("text", ["// comments\n{}", "[]", '{"mcpServers": []}'])
def test_settings_that_cannot_be_read_are_left_alone(folder: Path, text: str) -> None:
    settings(folder).write_text(text)
    (line,) = install(COMMAND, folder, lambda _: True)
    assert "nothing was changed" in line
    assert settings(folder).read_text() == text


def test_an_agent_is_here_by_its_program_too(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "code"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    lines = list(install(COMMAND, folder, lambda _: True))
    assert "VS Code: written. Restart it to see the tools." in lines
    assert "sweeper" in json.loads((folder / ".vscode" / "mcp.json").read_text())["servers"]


def test_without_an_agent_nothing_is_offered(folder: Path) -> None:
    (folder / ".cursor").rmdir()
    with pytest.raises(UserError, match=f"none is here .{AGENTS[0].name}"):
        list(install(COMMAND, folder, lambda _: True))

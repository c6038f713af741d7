"""Writes the entry of `sweeper mcp` into the settings of the coding agents that are here."""

from __future__ import annotations

import difflib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.errors import UserError
from sweeper.system.files import write_atomic

ENTRY = "sweeper"


@dataclass(frozen=True, slots=True)
class Agent:
    """A coding agent.

    Attributes:
        program: Its program; it is here if that is on the PATH, or if the folder of its settings exists.
        file: Its settings, in the folder of the training or, with `~`, in the user's.
        key: Where the settings list servers.
    """

    name: str
    program: str
    file: str
    key: str = "mcpServers"

    def path(self, folder: Path) -> Path:
        """Returns the file of its settings for a training in a folder."""
        return Path(self.file).expanduser() if self.file.startswith("~") else folder / self.file

    def is_here(self, folder: Path) -> bool:
        """Returns whether it is used here."""
        parent = self.path(folder).parent
        return shutil.which(self.program) is not None or (parent != folder and parent.is_dir())


AGENTS = (
    Agent("Claude Code", "claude", ".mcp.json"),
    Agent("Cursor", "cursor", ".cursor/mcp.json"),
    Agent("VS Code", "code", ".vscode/mcp.json", "servers"),
    Agent("Gemini CLI", "gemini", "~/.gemini/settings.json"),
    Agent("Windsurf", "windsurf", "~/.codeium/windsurf/mcp_config.json"),
)


def install(command: Sequence[str], folder: Path, ask: Callable[[str], bool]) -> Iterator[str]:
    """Offers each agent that is here an entry for a training; yields what is done, in lines.

    Args:
        command: The command of the training.
        ask: Receives a question, and returns whether the answer is yes.

    Raises:
        UserError: No agent is here.
    """
    here = [agent for agent in AGENTS if agent.is_here(folder)]
    if not here:
        names = ", ".join(agent.name for agent in AGENTS)
        raise UserError(f"`--install` needs a coding agent, but none is here ({names}). Install one first.")
    entry = {"command": _own_program(), "args": ["mcp", "--folder", str(folder), "--", *command]}
    for agent in here:
        path = agent.path(folder).resolve()
        try:
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            after = _with_entry(before, agent.key, entry)
        except (OSError, ValueError) as error:
            yield f"{agent.name}: {path} cannot be read as JSON ({error}); nothing was changed."
            continue
        if after == before:
            yield f"{agent.name}: {path} has this entry already."
            continue
        both = (str(path), str(path))
        yield from (
            line.rstrip("\n")
            for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), *both)
        )
        if not ask(f"Write this for {agent.name}?"):
            yield f"{agent.name}: nothing was changed."
        elif (path.read_text(encoding="utf-8") if path.exists() else "") != before:
            yield f"{agent.name}: {path} has changed meanwhile; nothing was changed. Run it again."
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = path.stat().st_mode if path.exists() else None
            write_atomic(path, after)
            if mode is not None:
                path.chmod(mode)
            yield f"{agent.name}: written. Restart it to see the tools."


def _with_entry(text: str, key: str, entry: Mapping[str, Any]) -> str:
    """Returns settings with the entry.

    Raises:
        ValueError: They are not a JSON object.
    """
    settings = json.loads(text) if text.strip() else {}
    if not isinstance(settings, dict) or not isinstance(settings.get(key, {}), dict):
        raise ValueError("it has no object of servers")
    if settings.get(key, {}).get(ENTRY) == entry:
        return text
    settings[key] = {**settings.get(key, {}), ENTRY: entry}
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _own_program() -> str:
    """Returns the path of the program that runs, for agents that do not have it on their PATH."""
    program = Path(sys.executable).with_name("sweeper")
    return str(program) if program.exists() else shutil.which("sweeper") or "sweeper"

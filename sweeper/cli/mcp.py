"""`sweeper mcp`: gives a coding agent access to `watch`, `tune`, `judge` and `show` for one command."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from sweeper.cli.mcp_install import install as entries
from sweeper.errors import UserError
from sweeper.system.process import python_module

MAX_MINUTES = 10.0
MAX_OUTPUT = 32_000
"""Maximum length of an answer in characters; the beginning of a longer one is left out."""
MAX_SUMMARY = 4_000_000
"""Maximum length in characters of a summary with all of its trials, which the answer leaves out."""
MAX_PATCH = 200_000
"""Maximum length of a patch in characters."""
GRACE_SECONDS = 600.0
"""Time beyond the requested minutes for the seeded runs and the minimum of rounds, which always complete."""
END_SECONDS = 30.0
"""Time between SIGINT and SIGKILL; an interrupted sweep needs up to 25 s for an orderly exit."""

Tool = Callable[..., Awaitable[str]]

INSTRUCTIONS = (
    "Measures one PyTorch training: the command that the user named. Measure first (watch). Then propose one"
    " change at a time as a patch and have it judged; keep it only if it is faster and its losses are equal"
    " or close. Calls take minutes and run one at a time."
)


def mcp(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="The only command that runs.", show_default=False),
    ],
    folder: Annotated[Path, typer.Option("--folder", help="Where it runs.")] = Path(),
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0.1, help="Time limit of one call.")
    ] = MAX_MINUTES,
    install: Annotated[
        bool,
        typer.Option("--install", help="Write the entry for the agents that are here; asks before each."),
    ] = False,
) -> None:
    """Serve watch, tune, judge and show to a coding agent, over standard input and output (MCP).

    The agent cannot name commands, folders or options: it chooses a tool, minutes, a revision of git, or a
    patch, which is applied to a copy. The code in a patch may do whatever the script itself may do.

    Example: sweeper mcp --folder ~/project -- python train.py
    """
    if not folder.is_dir():
        raise UserError(f"`--folder` must be a folder, but got {str(folder)!r}.")
    if install:
        for line in entries(command, folder.resolve(), confirmed):
            print(line)
        return
    if importlib.util.find_spec("mcp") is None or importlib.util.find_spec("mcp.server.mcpserver") is None:
        raise UserError(
            "`sweeper mcp` needs the package mcp, 2 or newer."
            " Install it with `pip install 'sweeper-torch[mcp]'`."
        )
    server(Runner(folder=folder.resolve(), command=tuple(command), max_minutes=minutes)).run("stdio")


def confirmed(question: str) -> bool:
    """Returns whether the user says yes; without a terminal, nobody does."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


class RequestError(Exception):
    """The agent's request is not allowed; the text says what is."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """Runs the program's own commands, one at a time.

    Attributes:
        command: The command of the training.
        max_minutes: Time limit of one call.
    """

    folder: Path
    command: tuple[str, ...]
    max_minutes: float
    is_busy: bool = field(default=False, init=False)

    async def run(self, words: Sequence[str], minutes: float, max_chars: int = MAX_OUTPUT) -> str:
        """Returns what `sweeper WORDS` prints, and its exit code if that is not 0.

        Args:
            max_chars: Maximum length in characters; the beginning of a longer text is left out.

        Raises:
            RequestError: Another command is running, or the minutes are beyond the limit.
        """
        if not 0 < minutes <= self.max_minutes:
            limit = f"above 0 and at most {self.max_minutes:g}"
            raise RequestError(f"`minutes` must be {limit}, but got {minutes}.")
        if self.is_busy:
            raise RequestError("another measurement is running and would be disturbed. Wait for its answer.")
        self.is_busy = True
        try:
            return await self._run(words, 60 * minutes + GRACE_SECONDS, max_chars)
        finally:
            self.is_busy = False

    async def _run(self, words: Sequence[str], seconds: float, max_chars: int) -> str:
        import anyio

        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            process = await anyio.open_process(
                python_module("sweeper", *words),
                cwd=self.folder,
                stdin=None,
                stdout=output.fileno(),
                stderr=output.fileno(),
                start_new_session=True,
            )
            is_late = False
            try:
                with anyio.move_on_after(seconds) as scope:
                    await process.wait()
                is_late = scope.cancelled_caught
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
            output.seek(max(0, output.seek(0, os.SEEK_END) - 4 * max_chars))
            text = output.read()
        if len(text) > max_chars:
            text = f"(the beginning is left out)\n{text[-max_chars:]}"
        if is_late:
            return f"{text}\n(stopped: it took longer than {seconds:.0f} s)"
        return text if not process.returncode else f"{text}\n(exit code {process.returncode})"


async def _end(process: Any) -> None:
    """Ends a process that is still running, and its group."""
    import anyio

    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with anyio.move_on_after(END_SECONDS):
            await process.wait()


def server(runner: Runner) -> Any:
    """Returns the server with its tools."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    def with_refusals(tool: Tool) -> Tool:
        @functools.wraps(tool)
        async def call(*args: Any, **kwargs: Any) -> str:
            try:
                return await tool(*args, **kwargs)
            except RequestError as refusal:
                # The text of any other error is not passed on.
                raise ToolError(str(refusal)) from None

        return call

    mcp_server = MCPServer("sweeper", instructions=INSTRUCTIONS)
    training = ["--", *runner.command]

    async def watch() -> str:
        """The training's speed, the parts of its step, and why it is not faster, as JSON. Takes a minute."""
        return await runner.run(["watch", "--json", *training], min(3.0, runner.max_minutes))

    async def tune(minutes: float = 5.0, new: bool = False) -> str:
        """Make the training faster without editing it, and verify that it trains the same.

        The result is in the sweep that the answer names; `show` prints it.

        Args:
            minutes: Limit of the search.
            new: Whether to start over, if the training has changed since the last tune.
        """
        return await runner.run(["tune", f"--minutes={minutes}", *["--new"] * new, *training], minutes)

    async def judge(patch: str = "", ref: str = "", minutes: float = 5.0) -> str:
        """Whether a change is faster and trains the same, as JSON. Name one of `patch` and `ref`.

        Args:
            patch: A unified diff, relative to the repository; it is applied to a copy.
            ref: A revision of git that the working tree is compared with.
            minutes: Limit.
        """
        if bool(patch) == bool(ref):
            raise RequestError("name either `patch` or `ref`.")
        if len(patch) > MAX_PATCH:
            raise RequestError(f"`patch` must have at most {MAX_PATCH:,} characters, but has {len(patch):,}.")
        words = ["judge", "--json", f"--minutes={minutes}"]
        if ref:
            return await runner.run([*words, f"--ref={ref}", *training], minutes)
        with tempfile.NamedTemporaryFile("w", suffix=".diff", encoding="utf-8") as file:
            file.write(patch)
            file.flush()
            return await runner.run([*words, f"--patch={file.name}", *training], minutes)

    async def show(name: str) -> str:
        """The summary of a sweep, such as a tune's, without its individual trials, as JSON."""
        text = await runner.run(["show", "--json", "--", name], 1.0, MAX_SUMMARY)
        try:
            summary = json.loads(text)
        except ValueError:
            return text[-MAX_OUTPUT:]
        summary.pop("trials", None)
        return json.dumps(summary, indent=1)

    for tool in (watch, tune, judge, show):
        mcp_server.tool()(with_refusals(tool))
    return mcp_server

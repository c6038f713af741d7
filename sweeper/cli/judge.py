"""`sweeper judge`: judges whether a change makes a training faster, and whether it trains the same."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli import signals
from sweeper.cli.exit_codes import FAILED, INTERRUPTED
from sweeper.cli.judge_comment import comment as markdown
from sweeper.cli.options import Json, PassEnv, Unprotected, interpret
from sweeper.cli.screen import LiveScreen, console, prose
from sweeper.core.progress import TrialFailedError
from sweeper.errors import UserError
from sweeper.judging.arms import Arm, commands, commits_of, patched, since
from sweeper.judging.history import JudgedCommit, judgement_of, read_history, with_judgement, write_history
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.judging.verdict import SCHEMA, RequiredSpeed, Verdict, words
from sweeper.judging.verdict import judge as judge_change
from sweeper.judging.whole import WholeRun, common_numbers
from sweeper.results.formatting import times
from sweeper.results.words import interval_text
from sweeper.schema.rules import leads_elsewhere
from sweeper.system.environment import script_held_back_line
from sweeper.system.files import check_out, write_atomic
from sweeper.telemetry.gpu_advice import gpus_for

_COSTS = (
    ("memory_gib", "Memory", "GiB"),
    ("gpu_memory_gib", "GPU memory", "GiB"),
    ("joules_per_sample", "Energy per sample", "J"),
)


def judge(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND...",
            help="The command of the script, in both versions.",
            show_default=False,
            callback=interpret,
        ),
    ] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="CMD", help="The command as it was.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CMD", help="The command as it is now.")
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option("--ref", metavar="REV", help="Compare this revision of git with the working tree."),
    ] = None,
    patch: Annotated[
        Path | None,
        typer.Option("--patch", metavar="FILE", help="Compare the working tree with this patch applied."),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes",
            metavar="M",
            min=0.1,
            help="Time limit; seeded runs and one start of each version always complete.",
        ),
    ] = 5.0,
    require: Annotated[
        RequiredSpeed | None,
        typer.Option("--require", help="Exit with 1 unless this holds and the new version trains the same."),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Then run both to their end, and compare the numbers they print last."),
    ] = False,
    comment: Annotated[
        Path | None,
        typer.Option("--comment", metavar="FILE", help="Write the verdict as Markdown, for a pull request."),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            "--history", metavar="FILE", help="With --ref: keep what the last 30 commits were judged there."
        ),
    ] = None,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    as_json: Json = False,
) -> None:
    """Judge a change to a training script: is it faster, and does it train the same?

    Both versions take turns, each time in a new process, until the answer is clear or time is up. Seeded
    runs of both are compared bit for bit. Nothing is edited. Exits with 1 if --require is not met or a
    version fails, else with 0.

    --json: {"speed": "faster" | "slower" | "same" | "undecided", "ratio", "low", "high", "losses": "equal" |
    "close" | "different" | "unknown", ...} (docs/judge.md)

    Example: sweeper judge --ref main --require not-slower -- python train.py
    """
    signals.allow_answer()
    judgements = _check_files(comment, history, ref)
    commits = commits_of(ref, Path.cwd()) if history is not None and ref is not None else None
    # Only the JSON goes to standard output.
    out = console(stderr=as_json)
    if line := script_held_back_line(os.environ):
        prose(out, line)
    verdict, failure = None, ""
    with (
        _arms(command or [], before, after, ref, patch) as arms,
        gpus_for(arms[0].command, lambda line: prose(out, line)),
        LiveScreen(out) as screen,
    ):
        screen.line(f"{arms[0].name}: {shlex.join(arms[0].command)}")
        screen.line(f"{arms[1].name}: {shlex.join(arms[1].command)}")
        try:
            verdict = judge_change(arms, minutes, screen.line, whole=whole)
        except TrialFailedError as error:
            failure = str(error)
            screen.line(f"It cannot be judged: {failure}.")
    if verdict is None:
        if as_json:
            print(json.dumps({"schema": SCHEMA, "error": failure}))
        raise typer.Exit(FAILED)
    if history is not None and commits is not None and not verdict.speed.is_stopped:
        judgements = with_judgement(judgements, judgement_of(verdict, *commits))
        write_history(history, judgements)
    if comment is not None:
        write_atomic(comment, markdown(verdict, judgements))
    if as_json:
        is_met = {} if require is None else {"require": str(require), "met": verdict.meets(require)}
        print(json.dumps({**verdict.to_dict(), **is_met}, indent=1))
    else:
        for line in lines(verdict, require):
            prose(out, line)
    if verdict.speed.is_stopped:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(FAILED if require is not None and not verdict.meets(require) else 0)


def _check_files(comment: Path | None, history: Path | None, ref: str | None) -> list[JudgedCommit]:
    """Checks the files that the verdict goes to, before anything runs; returns what the history has.

    Raises:
        UserError: A folder is not there, a history has no revision, or its file has other content.
    """
    if comment is not None:
        check_out(comment, "--comment")
    if history is None:
        return []
    check_out(history, "--history")
    if ref is None:
        raise UserError("`--history` is of commits, and needs `--ref`. Name the revision to compare with.")
    return read_history(history)


@contextlib.contextmanager
def _arms(
    command: list[str], before: str | None, after: str | None, ref: str | None, patch: Path | None
) -> Iterator[tuple[Arm, Arm]]:
    """Yields the two versions that the options name.

    Raises:
        UserError: They name none, or several.
    """
    ways = [before is not None or after is not None, ref is not None, patch is not None]
    if sum(ways) != 1:
        raise UserError(
            "`sweeper judge` needs exactly one way to name two versions: `--before CMD --after CMD`,"
            " `--ref REV -- COMMAND`, or `--patch FILE -- COMMAND`."
        )
    here = Path.cwd().resolve()
    if before is not None or after is not None:
        if not before or not after or command:
            raise UserError("`--before CMD` and `--after CMD` must both be given, without another command.")
        yield commands(_words("--before", before), _words("--after", after), here)
        return
    if not command:
        raise UserError("a command must follow `--`, such as `-- python train.py`.")
    _check_stays(command)
    if ref is not None:
        with since(ref, command, here) as arms:
            yield arms
        return
    assert patch is not None
    if not patch.is_file():
        raise UserError(f"`--patch` must be a file, but {str(patch)!r} is not.")
    with patched(patch.read_bytes(), patch.name, command, here) as arms:
        yield arms


def _words(option: str, text: str) -> list[str]:
    """Returns the words of a command line.

    Raises:
        UserError: It has none, or its quotes do not match.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"`{option}` must be a command line, but got {text!r}: {error}.") from None
    words = interpret(words) or []
    if not words:
        raise UserError(f"`{option}` must be a command line, but got {text!r}.")
    _check_stays(words)
    return words


def _check_stays(command: Sequence[str]) -> None:
    if reason := leads_elsewhere(command):
        raise UserError(f"`sweeper judge` runs the command many times on this machine, but {reason}.")


def lines(verdict: Verdict, require: RequiredSpeed | None) -> Iterator[str]:
    """Yields the verdict in words."""
    speed = verdict.speed
    yield ""
    interval = interval_text(speed.low, speed.high, len(speed.before), of="", what="start")
    yield f"{speed.answer}: {speed.ratio:.3g}x ({interval}); losses {words(verdict.training)}."
    sides = verdict.to_dict()
    for key, what, unit in _COSTS:
        before, after = (sides[arm][key] for arm in ("before", "after"))
        if before is not None and after is not None:
            yield f"  {what}: {before:.3g} {unit} before, {after:.3g} {unit} after."
    yield from _of_both_kinds(speed)
    if verdict.whole is not None:
        yield from _whole_lines(*verdict.whole)
    if speed.is_stopped:
        yield "  Ctrl-C ended it early."
    if speed.answer is Speed.UNDECIDED:
        yield "  More time (--minutes) or a quieter machine may settle it."
    if require is not None:
        met = "met" if verdict.meets(require) else "not met"
        yield f"  The requirement ({require}, and trains the same) is {met}."


def _whole_lines(before: WholeRun, after: WholeRun) -> Iterator[str]:
    """Yields how both versions ended."""
    failures = {"before": before.failure, "after": after.failure}
    for when, why in failures.items():
        if why:
            yield f"  At the end, the version {when} failed: {why}."
    if any(failures.values()):
        return
    numbers = common_numbers(before, after)
    for name, (was, now) in numbers.items():
        yield f"  At the end, {name}: {was:g} before, {now:g} after."
    if not numbers:
        yield "  At the end: the versions printed no number under the same name, such as `loss: 0.31`."


def _of_both_kinds(speed: SpeedComparison) -> Iterator[str]:
    """Yields the ratios without and with other programs, where there are rounds of both kinds."""
    if speed.quiet is not None and speed.busy is not None:
        for kind, part in (("On a quiet machine", speed.quiet), ("Beside other programs", speed.busy)):
            interval = interval_text(part.low, part.high, part.rounds, of="", what="start")
            yield f"  {kind}: {times(part.ratio)} ({interval})."

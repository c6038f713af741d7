"""`sweeper export --format patch`: writes a tune's changes as a patch of the script's own files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sweeper.cli.screen import LiveScreen, console, prose, say
from sweeper.core.job import read_job
from sweeper.core.progress import TrialFailedError
from sweeper.core.record import BASELINE
from sweeper.core.template import arguments, render
from sweeper.core.workload import script_of
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.exports import verification
from sweeper.exports.verification import VerifiedChange
from sweeper.judging.arms import root_of
from sweeper.judging.speed import SpeedComparison
from sweeper.results import words
from sweeper.results.formatting import times
from sweeper.script.changes import FILE_VARIABLE, load_changes
from sweeper.script.changes.loader import GATHERED, LoaderChange
from sweeper.script.patch.edits import PatchedChange
from sweeper.script.patch.patch import Patch, make
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import LoadedSweep, load_sweep
from sweeper.system.files import STDOUT, check_out, write_atomic, writing
from sweeper.telemetry.gpu_advice import gpus_for
from sweeper.tuning.gains import gains_of

FILE, NOT_FASTER = "best.patch", "not-faster.patch"
"""Files in the folder of the sweep: the patch, or the diff that was not shown to be faster."""
MINUTES, MORE_MINUTES = 3.0, 15
"""Minutes for the rounds of a patch, and minutes to suggest if they do not suffice."""


def write_patch(home: Path, name: str, out: Path | None) -> None:
    """Writes the winner of a tune as a patch, if its gain holds without sweeper.

    Raises:
        UserError: The sweep is not a tune with a winner.
        NothingFeasibleError: The winner has no change that can be written, the script cannot be measured,
            or the patch is not shown to be faster.
    """
    sweep = load_sweep(find_sweep(home, name))
    changes = _patched_changes(sweep)
    job = read_job(sweep.journal.trial_folder(BASELINE))
    script = script_of(job)
    # With the values that its own options had, if a tune searched those, too.
    command, folder = arguments(script.command, job.config.args or {}), Path(script.folder)
    file = render(script.env.get(FILE_VARIABLE, ""), {})
    path = out or sweep.journal.folder / FILE
    if path != STDOUT:
        # Before the minutes of measuring.
        check_out(path)
    screen = console(stderr=path == STDOUT)
    with gpus_for(command, lambda line: prose(screen, line)), LiveScreen(screen) as live:
        live.line(f"Writing {', '.join(f'{e.name} {e.value}' for e in changes)} into a copy of {folder}.")
        try:
            patch = make(command, folder, changes, MINUTES, live.line, load_changes(file))
        except TrialFailedError as error:
            raise NothingFeasibleError(f"the script cannot be measured: {error}") from error
    if patch.speed is None:
        raise NothingFeasibleError(f"`{name}` has no patch: none of its changes can be made in the script.")
    if not patch.holds:
        path_of_diff = sweep.journal.folder / NOT_FASTER
        with writing(path_of_diff.parent):
            write_atomic(path_of_diff, patch.text)
        raise NothingFeasibleError(
            f"`{name}` has no patch: {why_not_faster(patch, path_of_diff, command, folder)}"
        )
    if path == STDOUT:
        print(patch.text, end="")
        return
    with writing(path.parent):
        write_atomic(path, patch.text)
    for line in lines(patch):
        prose(screen, line)
    say(screen, f"Apply it: {apply_command(path, root_of(folder))}")


def lines(patch: Patch) -> Iterator[str]:
    """Yields the speed and the training of a patch that holds."""
    assert patch.speed is not None
    yield f"The patched script, without sweeper: {_speed_text(patch.speed)}."
    if patch.training is not None:
        yield f"Its training is {patch.training.answer} over {patch.training.covers}."


def _speed_text(speed: SpeedComparison) -> str:
    sure = words.interval_text(speed.low, speed.high, len(speed.before), of="", what="start")
    return f"{times(speed.ratio)} ({sure})"


def why_not_faster(patch: Patch, path: Path, command: Sequence[str], folder: Path) -> str:
    """Returns the speed of a patch that does not hold, and the command that judges it for longer.

    Args:
        path: File with the patch.
        folder: Folder that the script's command runs in.
    """
    assert patch.speed is not None
    alone = ", or some of its hunks alone," if patch.text.count("\n@@ ") > 1 else ""
    judge = ["sweeper", "judge", f"--minutes={MORE_MINUTES}", f"--patch={path.resolve()}", "--", *command]
    return (
        f"it runs at {_speed_text(patch.speed)}, so it is not shown to be faster."
        f" To judge it{alone} for longer, run in {folder}: {shlex.join(judge)}"
    )


def apply_command(path: Path, root: Path) -> str:
    """Returns the command that applies a patch, to run in the current folder.

    Args:
        root: Folder that the patch is relative to; git resolves its paths against the folder it runs in.
    """
    if Path.cwd() == root:
        return shlex.join(["git", "apply", str(path)])
    return shlex.join(["git", "-C", str(root), "apply", str(path.resolve())])


def _patched_changes(sweep: LoadedSweep) -> list[PatchedChange]:
    winner = sweep.summary.winner
    verified = verification.read(winner) if winner is not None else None
    if verified is None:
        raise UserError(
            f"`--format patch` needs a tune that has a winner, but {sweep.journal.name!r} is not one."
            " Run `sweeper tune -- COMMAND` first."
        )
    if verified.difference or not verified.changes:
        raise NothingFeasibleError(f"`{sweep.journal.name}` has no winner to write as a patch.")
    device = sweep.about["device"]
    gains = _gains(sweep, [change.name for change in verified.changes])
    return [
        PatchedChange(
            name=change.name,
            value=change.value,
            original=change.original,
            comment=_comment(change, gains.get(change.name, ""), device),
        )
        for change in verified.changes
    ]


def _gains(sweep: LoadedSweep, names: Sequence[str]) -> Mapping[str, str]:
    """Returns the gain of each named change in words, where it is known."""
    ratio = sweep.summary.ratio
    if sweep.journal.schema == 1:
        # Its parameters have the earlier names of the changes.
        return {}
    if len(names) == 1:
        if ratio is None:
            return {}
        return {names[0]: f"{times(ratio.ratio)} as fast ({words.later_interval(ratio)})"}
    # No intervals: those of single changes hold for the hour of their rounds, not for later runs.
    return {
        gain.name: f"{interval[0]:.3g}x as fast {'on top of the other changes' if gain.stacked else 'alone'}"
        for gain in gains_of(sweep)
        if (interval := gain.stacked or gain.alone)
    }


def _comment(change: VerifiedChange, gain: str, device: str) -> str:
    is_gathered = (change.name, change.value) == (LoaderChange.name, GATHERED)
    why = "the dataset is loaded into memory once, and batches are indexed" if is_gathered else change.why
    text = f"{why[:1].upper()}{why[1:]}"
    return f"{text}: {gain}, on {device}." if gain else f"{text}."

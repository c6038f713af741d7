"""What the command line does, for notebooks and programs: run, tune, watch, judge, confirm, export."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tqdm.auto import tqdm

from sweeper.core.config import Scalar
from sweeper.core.export_formats import YAML
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.record import TrialRecord
from sweeper.dataframe import frame
from sweeper.errors import UserError
from sweeper.judging.arms import commands
from sweeper.judging.verdict import Verdict
from sweeper.judging.verdict import judge as judge_arms
from sweeper.launch.local import SWEEP_MARK
from sweeper.production.handover import hand_over
from sweeper.results.decision_lines import decision_lines
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.trial_line import trial_line
from sweeper.schema import load
from sweeper.schema.shipped import space_file
from sweeper.script.metering import METER_VARIABLE
from sweeper.sweep.folder.load import LoadedSweep
from sweeper.sweep.hints import unsent_lines
from sweeper.sweep.observer import QuietObserver, Status
from sweeper.sweep.phases.reconfirm import Reconfirmation, reconfirm
from sweeper.sweep.run import run_sweep
from sweeper.tracking.mlflow import MlflowTracker
from sweeper.tuning.handover import TuneObserver
from sweeper.tuning.options import TuneOptions
from sweeper.tuning.result import TuneResult
from sweeper.tuning.tune import Tune
from sweeper.tuning.watch import WatchResult
from sweeper.tuning.watch import watch as watch_script
from sweeper.tuning.words import html_of

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("name", "stage", "outcome", "throughput", "speedup", "ratio", "verdict")
MAX_ROWS = 10
_FORMAT = "{desc}{bar} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""Format of the progress bar. It has no rate, because trials differ too much in duration."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that `run` returned; a notebook shows its decision and its fastest trials.

    Attributes:
        name: The sweep's name, as `sweeper list` shows it.
        folder: Its folder, with everything that it measured.
        state: `finished`, or `stopped` after Ctrl-C: `run` with the same specification continues it.
        ratio: The winner's confirmed speed against the baseline, with its 95% interval; None where
            no winner is confirmed.
        config: The winner's parameters by their dotted names; empty where there is no winner.
        lines: The decision in words.
        unsent: What MLflow lacks, and the command that sends it, in words; empty if nothing is missing.
    """

    name: str
    folder: Path
    state: str
    ratio: Ratio | None
    config: Mapping[str, Scalar]
    lines: tuple[str, ...]
    unsent: tuple[str, ...]
    _loaded: LoadedSweep

    def frame(self) -> pd.DataFrame:
        """Returns the trials as a table, one row per trial (see `sweeper.load`)."""
        return frame(self._loaded)

    def __repr__(self) -> str:
        """Returns the decision in words."""
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        table = self.frame()[list(_COLUMNS)].sort_values("speedup", ascending=False).head(MAX_ROWS)
        return html_of(self.lines, table)


def run(
    spec: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    home: str | Path = DEFAULT_HOME,
    new: bool = False,
    extend: int = 0,
    tracking_uri: str | None = None,
    progress: bool = True,
) -> Sweep:
    """Runs a sweep to its end, or continues one that was interrupted; never repeats a trial.

    Ctrl-C (a notebook's stop button) ends it in an orderly way and returns the result so far.

    Args:
        spec: A search space: the path of a YAML file, the name of one that comes with sweeper, or the
            same keys as a dictionary.
        overrides: Values to override, as `key=value` (`search.trials=20`).
        home: The state folder.
        new: Begin another sweep under a new name.
        extend: Trials to add to a finished sweep.
        tracking_uri: An MLflow server or database; by default the database in the state folder.
        progress: Show a progress bar and a line for each trial.

    Returns:
        The sweep with its decision.

    Raises:
        SweeperError: The specification is wrong (`UserError`, a `ValueError`), or the sweep cannot go
            on; what was measured is kept.
    """
    _check_not_measured("sweeper.run")
    sweep_spec = load(spec if isinstance(spec, Mapping) else space_file(str(spec)), overrides)
    tracker = MlflowTracker(Path(home), tracking_uri)
    with _observer(progress) as observer:
        done = run_sweep(Path(home), sweep_spec, tracker, observer, new=new, extend=extend)
        unsent = tuple(unsent_lines(done, tracker, tracking_uri, Path(home)))
        for line in unsent:
            observer.line(line)
    summary = done.sweep.summary
    return Sweep(
        name=done.sweep.journal.name,
        folder=done.sweep.journal.folder,
        state=summary.state,
        ratio=summary.ratio,
        config=summary.winner.config.flatten() if summary.winner else {},
        lines=tuple(decision_lines(summary)),
        unsent=unsent,
        _loaded=done.sweep,
    )


def judge(
    before: Sequence[str],
    after: Sequence[str],
    *,
    folder: str | Path = ".",
    minutes: float = 5.0,
    whole: bool = False,
    progress: bool = True,
) -> Verdict:
    """Judges a change to a training script: is it faster, and does it train the same?

    Args:
        before: The command before the change, as a list of words.
        after: The command with the change.
        folder: The working folder of both commands; each runs in a mirror of it.
        minutes: Limit for the whole comparison.
        whole: Whether both run to their end afterwards, however long that takes (`Verdict.whole`).
        progress: Print a line for each finding.

    Returns:
        The verdict; after Ctrl-C, from what there is (`speed.is_stopped`).

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed before there was an answer.
        TrialFailedError: One of them cannot be measured.
        UserError: One of them cannot be started.
    """
    _check_not_measured("sweeper.judge")
    arms = commands(before, after, Path(folder).resolve())
    return judge_arms(arms, minutes, _speaker(progress), whole=whole)


def _check_not_measured(name: str) -> None:
    """Checks that a function is not called by a training that is being measured.

    Raises:
        UserError: It is.
    """
    if os.environ.get(METER_VARIABLE) or os.environ.get(SWEEP_MARK):
        raise UserError(
            f"`{name}` measures a training from outside, but is called in one that is being measured."
            " Call it from another program or a notebook."
        )


def _speaker(progress: bool) -> Callable[[str], None]:
    """Returns a function that prints a line beside a progress bar, or nothing."""

    def say(line: str) -> None:
        if progress:
            tqdm.write(line)

    return say


def tune(
    command: str | Sequence[str],
    *,
    minutes: float = 5.0,
    with_flags: bool = False,
    allow_batch_size: bool = False,
    allow_other_draws: bool = False,
    changes: str | Path | None = None,
    name: str | None = None,
    new: bool = False,
    home: str | Path = DEFAULT_HOME,
    tracking_uri: str | None = None,
    progress: bool = True,
) -> TuneResult:
    """Makes a training script faster without editing it, and proves that it trains the same.

    Runs the command in the current folder. The same call continues a tune that was interrupted: Ctrl-C (a
    notebook's stop button) returns the best so far once a change is shown to be faster, and raises
    `KeyboardInterrupt` before. Nothing is left running.

    Args:
        command: The command of the script, as a list of words or as one line (`"python train.py"`), which
            is split as a shell would.
        minutes: Time limit for everything.
        with_flags: Then search the script's own options that are recognised.
        allow_batch_size: Then search larger batches, within a limit on the loss.
        allow_other_draws: Let more workers augment rows; the random numbers differ.
        changes: A Python file with your own changes, verified like all others.
        name: Name of the sweep; `tune-SCRIPT` by default.
        new: Start over, under a new name.
        home: The state folder.
        tracking_uri: An MLflow server or database; by default the database in the state folder.
        progress: Show a progress bar and a line for each finding.

    Returns:
        The decision, with a table of the changes.

    Raises:
        UserError: The command cannot be tuned, or an argument is wrong.
        TrialFailedError: The script cannot be watched.
        SweeperError: The sweep cannot go on; what was measured is kept.
    """
    _check_not_measured("sweeper.tune")
    options = TuneOptions.of(
        command,
        minutes=minutes,
        with_flags=with_flags,
        allow_batch_size=allow_batch_size,
        allow_other_draws=allow_other_draws,
        changes=Path(changes) if changes is not None else None,
        name=name,
        new=new,
        home=Path(home),
        uri=tracking_uri,
    )
    with _observer(progress) as observer:
        return Tune(options, observer).run()


def watch(command: str | Sequence[str], *, progress: bool = True) -> WatchResult:
    """Watches a training script as it is: its speed, the parts of a step, and what limits it.

    Runs the command for some seconds, in the current folder. Nothing is edited.

    Args:
        command: The command of the script, as a list of words or as one line, which is split as a shell
            would.
        progress: Print a line for each stage.

    Returns:
        The speed and the parts of a step.

    Raises:
        UserError: The command cannot be started.
        TrialFailedError: It cannot be measured.
    """
    _check_not_measured("sweeper.watch")
    with tempfile.TemporaryDirectory(prefix="sweeper-watch-") as folder:
        return watch_script(command, Path(folder, "output"), _speaker(progress), progress=progress)


def confirm(
    name: str,
    *,
    home: str | Path = DEFAULT_HOME,
    soak_seconds: float = 0.0,
    minutes: float | None = None,
    progress: bool = True,
) -> Reconfirmation:
    """Measures a sweep's winner against its baseline again; the sweep's own result does not change.

    Args:
        name: Name of the sweep.
        home: The state folder.
        soak_seconds: Then run the winner for this long, to see whether its speed holds.
        minutes: Longest time without that run; by default, until the answer is clear.
        progress: Show a progress bar and a line for each finding.

    Returns:
        The ratio of the sweep and the one of today.

    Raises:
        UserError: There is no such sweep, or it has no winner.
    """
    _check_not_measured("sweeper.confirm")
    with _observer(progress) as observer:
        return reconfirm(Path(home), name, observer, soak_seconds=soak_seconds, minutes=minutes)


def export(
    name: str,
    form: str = YAML,
    *,
    out: str | Path | None = None,
    trial: int | None = None,
    rule: str | None = None,
    flags: str | Path | None = None,
    home: str | Path = DEFAULT_HOME,
) -> str:
    """Exports the winner of a sweep, or another trial, for production.

    Args:
        name: Name of the sweep.
        form: The format (`sweeper export --help` lists them).
        out: File to write; by default `best.yaml` or the like in the sweep's folder.
        trial: Number of another trial than the winner.
        rule: With several objectives: `knee` or `lowest_loss` picks the trial from the front.
        flags: A file of your own flags, for the format `args`.
        home: The state folder.

    Returns:
        The text, which is also in the file; a format without a suffix (`args`) is only returned.

    Raises:
        UserError: Arguments contradict each other, or something they name does not exist.
        NothingFeasibleError: There is no trial to export.
        EnvironmentStopError: The file cannot be written.
    """
    handover = hand_over(
        Path(home),
        name,
        form,
        trial=trial,
        out=Path(out) if out is not None else None,
        flags=Path(flags) if flags is not None else None,
        rule=rule,
    )
    handover.write()
    return handover.text


@contextlib.contextmanager
def _observer(progress: bool) -> Iterator[TuneObserver]:
    if not progress:
        yield QuietObserver()
        return
    with _Bar() as bar:
        yield bar


class _Bar:
    """Shows a sweep as a progress bar, in a notebook or on a terminal."""

    def __enter__(self) -> Self:
        self._phase = ""
        self._bar = tqdm(total=0, leave=False, dynamic_ncols=True, bar_format=_FORMAT)
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def line(self, text: str) -> None:
        tqdm.write(text)

    command = line

    def trial(self, record: TrialRecord, name: str, speedup: float | None) -> None:
        tqdm.write(trial_line(record, name, speedup))

    def status(self, status: Status) -> None:
        if (status.phase, status.total) != (self._phase, self._bar.total):
            self._phase = status.phase
            self._bar.reset(total=status.total)
            self._bar.set_description(status.phase, refresh=False)
        self._bar.n = status.done
        if status.best_ratio is not None:
            self._bar.set_postfix_str(f"best {status.best_ratio:.3g}x: {status.best}", refresh=False)
        self._bar.refresh()

"""Runs a sweep or judges a change from a notebook or a script: `sweeper.run`, `sweeper.judge`."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tqdm.auto import tqdm

from sweeper.analysis.confirmation import Ratio
from sweeper.cli.sync import unsent_lines
from sweeper.core.config import Scalar
from sweeper.core.record import TrialRecord
from sweeper.dataframe import frame
from sweeper.judging.arms import commands
from sweeper.judging.verdict import Verdict
from sweeper.judging.verdict import judge as judge_arms
from sweeper.results.decision_lines import decision_lines
from sweeper.results.trial_line import trial_line
from sweeper.spec import load
from sweeper.spec.shipped import space_file
from sweeper.sweep.observer import Observer, Quiet, Status
from sweeper.sweep.run import run_sweep
from sweeper.sweep.store.load import LoadedSweep
from sweeper.tracking.mlflow import MlflowTracker

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("name", "stage", "outcome", "throughput", "x_baseline", "ratio", "verdict")
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
        table = self.frame()[list(_COLUMNS)].sort_values("x_baseline", ascending=False).head(MAX_ROWS)
        words = "".join(f"<p>{html.escape(line.strip())}</p>" for line in self.lines)
        return words + table.to_html(na_rep="–", float_format=lambda value: f"{value:,.4g}")


def run(
    spec: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    home: str | Path = "mlruns",
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
    asked = load(spec if isinstance(spec, Mapping) else space_file(str(spec)), overrides)
    tracker = MlflowTracker(Path(home), tracking_uri)
    with _observer(progress) as observer:
        ran = run_sweep(Path(home), asked, tracker, observer, new=new, extend=extend)
        unsent = tuple(unsent_lines(ran, tracker, tracking_uri, Path(home)))
        for line in unsent:
            observer.line(line)
    summary = ran.sweep.summary
    return Sweep(
        name=ran.sweep.journal.name,
        folder=ran.sweep.journal.folder,
        state=summary.state,
        ratio=summary.ratio,
        config=summary.winner.config.flatten() if summary.winner else {},
        lines=tuple(decision_lines(summary)),
        unsent=unsent,
        _loaded=ran.sweep,
    )


def judge(
    before: Sequence[str],
    after: Sequence[str],
    *,
    folder: str | Path = ".",
    minutes: float = 5.0,
    progress: bool = True,
) -> Verdict:
    """Judges a change to a training script: is it faster, and does it train the same?

    Args:
        before: The command before the change, as a list of words.
        after: The command with the change.
        folder: The working folder of both commands; each runs in a mirror of it.
        minutes: Limit for the whole comparison.
        progress: Print a line for each finding.

    Returns:
        The verdict.

    Raises:
        TrialFailedError: One of them cannot be measured.
        UserError: One of them cannot be started.
    """

    def say(line: str) -> None:
        if progress:
            tqdm.write(line)

    return judge_arms(commands(before, after, Path(folder).resolve()), minutes, say)


@contextlib.contextmanager
def _observer(progress: bool) -> Iterator[Observer]:
    if not progress:
        yield Quiet()
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

    def trial(self, record: TrialRecord, name: str, x_baseline: float | None) -> None:
        tqdm.write(trial_line(record, name, x_baseline))

    def status(self, status: Status) -> None:
        if (status.phase, status.total) != (self._phase, self._bar.total):
            self._phase = status.phase
            self._bar.reset(total=status.total)
            self._bar.set_description(status.phase, refresh=False)
        self._bar.n = status.done
        if status.best_ratio is not None:
            self._bar.set_postfix_str(f"best {status.best_ratio:.3g}x: {status.best}", refresh=False)
        self._bar.refresh()

"""The result of a tune, as a program reads it and as a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.measurement import Measurement
from sweeper.sweep.run import SweepRun
from sweeper.tuning import words
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.gains import ChangeGain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """The result of a tune; a notebook shows its decision and its changes.

    Attributes:
        name: Name of the sweep underneath it, as `sweeper list` shows it.
        watched: Measurement of the unchanged script.
        changes: All changes; those that were not tried have the reason.
        gains: The speedup of each change that was measured.
        lines: The decision in words; empty if nothing was raced.
        bound: How much more what was tried may bring, without a winner; empty with one.
        fault: Why the winning changes together do not train the same; empty if they do.
        export: The winner's file for `sweeper exec`; None without a winner.
        unsent: What MLflow lacks, and the command that sends it; empty if nothing is missing.
        ran: The sweep; None if nothing was raced.
        searched: The sweep of the script's own options and its batch size; None if they were not searched.
        is_stopped: Whether Ctrl-C ended it; the same options continue it.
    """

    name: str
    watched: Measurement
    changes: tuple[ChangeValue, ...]
    gains: tuple[ChangeGain, ...] = ()
    lines: tuple[str, ...] = ()
    bound: str = ""
    fault: str = ""
    export: Path | None = None
    unsent: tuple[str, ...] = ()
    ran: SweepRun | None = None
    searched: SweepRun | None = None
    is_stopped: bool = False

    @property
    def state(self) -> str:
        """`finished`; `stopped` after Ctrl-C; `nothing to try` without a race."""
        if self.is_stopped:
            return "stopped"
        last = self.searched or self.ran
        return "nothing to try" if last is None else last.sweep.state

    def frame(self) -> pd.DataFrame:
        """Returns the changes as a table, one row per change.

        The columns are `value`, `kind`, `alone` and `stacked` (ratios to the speed without the change; NaN
        where that was not measured), `is_kept`, and `remark`: why it was not tried, or was left out.
        """
        import pandas as pd

        gains = {(gain.name, gain.value): gain for gain in self.gains}
        rows = []
        for change in self.changes:
            gain = gains.get((change.name, change.value))
            rows.append(
                {
                    "change": change.name,
                    "value": change.value,
                    "kind": change.kind,
                    "alone": gain.alone[0] if gain and gain.alone else None,
                    "stacked": gain.stacked[0] if gain and gain.stacked else None,
                    "is_kept": gain is not None and gain.is_kept,
                    "remark": change.refused,
                }
            )
        columns = ["change", "value", "kind", "alone", "stacked", "is_kept", "remark"]
        table = pd.DataFrame(rows, columns=columns).set_index("change")
        return table.astype({"alone": "float64", "stacked": "float64", "is_kept": "bool"})

    def __repr__(self) -> str:
        """Returns the decision in words."""
        return "\n".join(self.lines) or f"{self.name}: nothing to try"

    def _repr_html_(self) -> str:
        return words.html_of(repr(self).splitlines(), self.frame())

"""Watches a script as it is, for the command line and for notebooks: its speed, and what limits it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.core.measurement import Measurement, Window
from sweeper.core.progress import SilentProgress
from sweeper.errors import UserError
from sweeper.results.formatting import rate, seconds
from sweeper.results.run_lines import run_lines
from sweeper.results.trial_card import card
from sweeper.results.verdict.bottleneck import BottleneckVerdict, verdict_of
from sweeper.schema.rules import leads_elsewhere
from sweeper.script.run.command_line import typed_command
from sweeper.script.run.watch import NO_PARAMETERS
from sweeper.script.run.watch import watch as watch_script
from sweeper.telemetry.gpu_advice import gpus_for
from sweeper.tuning.words import html_of, pace

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]

_STAGES = {
    "build": "Starting the script.",
    "warmup": "Waiting for steps at a steady speed.",
    "diagnose": "Taking its steps apart.",
}
_PARTS = ("data", "h2d", "forward", "backward", "optimizer", "graph", "host_gap")


@dataclass(frozen=True, slots=True)
class WatchResult:
    """What was seen of a script; a notebook shows its speed, what limits it, and the parts of a step.

    Attributes:
        measurement: Its speed, the parts of its steps, and the machine's telemetry.
    """

    measurement: Measurement

    @property
    def samples_per_s(self) -> float:
        """The speed of the training, in samples per second."""
        return self.measurement.throughput

    @property
    def step_ms(self) -> float:
        """The length of a step, in ms."""
        return self.measurement.step_ms

    @property
    def verdict(self) -> BottleneckVerdict:
        """What limits the speed (`kind`), why, and what to change next."""
        return verdict_of(self.measurement, NO_PARAMETERS)

    @property
    def lines(self) -> list[str]:
        """The speed and the card of the script, and what its run takes, in words."""
        return self.describe()

    def describe(self, *, num_epochs: float | None = None, price: float | None = None) -> list[str]:
        """Returns the speed and the card of the script in words, and what its run takes.

        Args:
            num_epochs: Number of epochs of the run; by default, the run is what was watched.
            price: Price of an hour, in any currency.
        """
        started = seconds(self.measurement.startup_seconds)
        return [
            f"{pace(self.measurement)}; start-up {started}.",
            *card(self.measurement, NO_PARAMETERS),
            *run_lines(self.measurement, num_epochs=num_epochs, price=price),
        ]

    def frame(self) -> pd.DataFrame:
        """Returns the parts of a step as a table: `seconds`, and `share` of the step, by part."""
        import pandas as pd

        parts = self.measurement.breakdown
        took = {name: getattr(parts, f"{name}_s") for name in _PARTS}
        table = pd.DataFrame({"seconds": pd.Series({n: s for n, s in took.items() if s}, dtype="float64")})
        table.index.name = "part"
        return table.assign(share=table["seconds"] / parts.step_s if parts.step_s else float("nan"))

    def __repr__(self) -> str:
        """Returns the speed and the card."""
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        verdict = self.verdict
        lines = [self.lines[0], f"{verdict.kind}: {verdict.why}"]
        return html_of([*lines, f"next: {verdict.next}"] if verdict.next else lines, self.frame())


def watch(command: str | Sequence[str], log: Path, say: Say, *, progress: bool = True) -> WatchResult:
    """Runs a command until it is measured and its steps are taken apart.

    Args:
        log: File for the output of the script.
        say: Receives a line for each fault of the GPUs, and with `progress` for each stage and window.

    Raises:
        TrialFailedError: It cannot be measured.
        UserError: It cannot be started.
    """
    words = typed_command(command)
    if reason := leads_elsewhere(words):
        raise UserError(f"`sweeper watch` runs the command on this machine alone, but {reason}.")
    with (
        gpus_for(words, say),
        log.open("w", encoding="utf-8") as output,
        contextlib.redirect_stdout(output),
    ):
        return WatchResult(
            watch_script(words, Path.cwd(), _SpeakingProgress(say) if progress else SilentProgress())
        )


class _SpeakingProgress(SilentProgress):
    """Says the stages and windows as they pass."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def stage(self, name: str) -> None:
        super().stage(name)
        if name in _STAGES:
            self._say(_STAGES[name])

    def window(self, window: Window) -> Sequence[str]:
        step = f", {1e3 * window.seconds / window.steps:.3g} ms per step" if window.steps else ""
        self._say(f"  {rate(window.samples / window.seconds)}{step}")
        return ()

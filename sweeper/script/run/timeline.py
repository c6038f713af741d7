"""Builds the timeline of a script: stretches of training with their samples, and losses."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, replace

from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.timing.steady import is_steady

BLOCK_SECONDS = 0.1
LAST_SHARE = 0.1
"""A training loss is the mean over this latest share of the samples, since single steps vary."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Training between two progress reports.

    Attributes:
        end_s: Monotonic clock at its end.
        seconds: Training time, without evaluation and other pauses.
        paused_seconds: Time of those pauses.
    """

    end_s: float
    seconds: float
    paused_seconds: float
    samples: float
    steps: int

    @property
    def start_s(self) -> float:
        """Monotonic clock at its beginning."""
        return self.end_s - self.seconds - self.paused_seconds


class Timeline:
    """Stretches in order, as one source reports them.

    Attributes:
        began_s: Time of the source's first report, where the first stretch begins.
        samples: Training samples so far.
        stage: Number of earlier stages; a stage ends when another optimizer takes over.
        num_earlier: Number of stretches before the current stage, the one in which it began included.
        losses: Pairs (samples, loss) in order; `val_losses` is the same for validation.
    """

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.began_s: float | None = None
        self.samples = 0.0
        self.stage = self.num_earlier = 0
        self.losses: list[tuple[float, float]] = []
        self.val_losses: list[tuple[float, float]] = []
        self._last: tuple[float, float, int, float] | None = None

    @property
    def paused_share(self) -> float:
        """The share of pauses in the time since the first step."""
        paused = sum(stretch.paused_seconds for stretch in self.stretches)
        total = paused + sum(stretch.seconds for stretch in self.stretches)
        return paused / total if total else 0.0

    def count(self, moment: float, samples: float, steps: int, paused_seconds: float = 0.0) -> None:
        """Adds the total samples, steps and pauses as of `moment`."""
        if self.began_s is None:
            self.began_s = moment
        last_moment, last_samples, last_steps, last_paused = self._last or (self.began_s, 0.0, 0, 0.0)
        if samples > last_samples and moment > last_moment:
            paused = paused_seconds - last_paused
            self._add(
                moment, moment - last_moment - paused, paused, samples - last_samples, steps - last_steps
            )
        elif samples > last_samples and self.stretches:
            # These lines arrived together, so all their samples had been trained on by then.
            last = self.stretches[-1]
            more, steps_more = samples - last_samples, steps - last_steps
            self.stretches[-1] = replace(last, samples=last.samples + more, steps=last.steps + steps_more)
        elif samples == last_samples and self._last is not None:
            # Nothing was trained meanwhile: the next stretch starts at the last report with progress.
            return
        self._last = moment, samples, steps, paused_seconds
        self.samples = samples

    def resume(self, moment: float) -> None:
        """Notes that training went on at `moment`, after a rest: the next stretch begins there."""
        if self._last is not None and moment > self._last[0]:
            self._last = (moment, *self._last[1:])

    def rate(self, moment: float, per_second: float, per_step: float) -> None:
        """Adds a speed as of `moment`: it holds for the time since the previous report."""
        if self.began_s is None:
            self.began_s = moment
        elif moment > (since := self.stretches[-1].end_s if self.stretches else self.began_s):
            seconds = moment - since
            samples = per_second * seconds
            self.samples += samples
            self._add(moment, seconds, 0.0, samples, round(samples / per_step) if per_step else 0)

    def enter_stage(self, stage: int, began_at: int) -> None:
        """Notes that a stage of training has begun after `began_at` steps."""
        if stage != self.stage:
            self.stage = stage
            totals = itertools.accumulate(stretch.steps for stretch in self.stretches)
            self.num_earlier = 1 + sum(total <= began_at for total in totals)

    def speed(self, since: int, until: int | None = None) -> float:
        """Returns the samples per second of some stretches; 0 if there are none."""
        stretches = self.stretches[since:until]
        return (
            sum(stretch.samples for stretch in stretches) / sum(stretch.seconds for stretch in stretches)
            if stretches
            else 0.0
        )

    def add_loss(self, name: str, value: float | None, samples: float) -> None:
        """Adds a `loss` or `val_loss` after `samples`.

        Raises:
            TrialFailedError: It is not a number.
        """
        if value is None or not math.isfinite(value):
            title = "validation loss" if name == "val_loss" else "loss"
            raise TrialFailedError(FailureKind.NON_FINITE, f"the script's {title} is no longer finite")
        (self.val_losses if name == "val_loss" else self.losses).append((samples, value))

    def _add(self, moment: float, seconds: float, paused: float, samples: float, steps: int) -> None:
        self.stretches.append(Stretch(moment, max(seconds, 1e-9), paused, samples, steps))

    def blocks(self, since: int = 0) -> list[float]:
        """Returns the seconds per sample of blocks of stretches that last `BLOCK_SECONDS` or longer."""
        blocks = []
        seconds = samples = 0.0
        for stretch in self.stretches[since:]:
            seconds += stretch.seconds
            samples += stretch.samples
            if seconds >= BLOCK_SECONDS:
                blocks.append(seconds / samples)
                seconds = samples = 0.0
        return blocks

    def is_steady(self, since: int = 0) -> bool:
        """Returns whether training is steady after some stretches, and one more that includes a start-up."""
        return is_steady(self.blocks(since + 1))

    def usual_gap(self) -> float:
        """Returns the median seconds between two reports; 0 if there are none."""
        return statistics.median(stretch.seconds for stretch in self.stretches) if self.stretches else 0.0

    def loss_at(self, samples: float) -> float | None:
        """Returns the training loss after `samples`: the mean over the last tenth of them."""
        losses = [loss for at, loss in self.losses if (1 - LAST_SHARE) * samples <= at <= samples]
        if losses:
            return statistics.fmean(losses)
        before = [loss for at, loss in self.losses if at <= samples]
        return before[-1] if before else None

    def val_loss_at(self, samples: float) -> float | None:
        """Returns the first validation loss at or after `samples`, or else the latest one."""
        after = [loss for at, loss in self.val_losses if at >= samples]
        return after[0] if after else self.val_losses[-1][1] if self.val_losses else None

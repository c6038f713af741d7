"""Runs a command for a few seconds and observes its training, as a basis for a first search space."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweeper.core.job import Job
from sweeper.core.measurement import Failure, FailureKind
from sweeper.core.progress import SilentProgress, TrialFailedError
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.errors import UserError
from sweeper.script.run.output import Listener
from sweeper.script.run.start import begins_again, started
from sweeper.script.run.timeline import Stretch
from sweeper.script.run.watch import job_outside_a_sweep

START_SECONDS = 60.0
"""Seconds within which a script must begin to train."""
LOOK_SECONDS = 5.0
MIN_STRETCHES = 3
LISTEN_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLook:
    """Observations of a command.

    Attributes:
        facts: What the training uses (`sweeper.script.changes.facts`); empty if torch reports nothing.
        samples_per_s: Its speed; 0 if unknown.
        startup_seconds: Seconds from its start to its first step.
        source: Source of the speed; empty if none was reported.
        has_loss: Whether a loss was reported.
        failure: Why nothing was observed; None if something was.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    samples_per_s: float = 0.0
    startup_seconds: float = 0.0
    source: str = ""
    has_loss: bool = False
    failure: Failure | None = None


def look_at(command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> FirstLook:
    """Runs a command in a mirror of `folder` until it has trained for some seconds, then ends it.

    Args:
        env: Its additional environment variables.
    """
    variables = {name: literal(value) for name, value in (env or {}).items()}
    script = Script(command=tuple(map(literal, command)), folder=str(folder), env=variables)
    with job_outside_a_sweep(script) as job:
        output = (Path(job.folder) / "output").open("w", encoding="utf-8")
        try:
            with output, contextlib.redirect_stdout(output):
                return _look(job)
        except TrialFailedError as error:
            return FirstLook(failure=Failure(kind=FailureKind(error.kind), message=str(error)))
        except (UserError, OSError) as error:
            return FirstLook(failure=Failure(kind=FailureKind.USER_ERROR, message=str(error)))


@begins_again
def _look(job: Job) -> FirstLook:
    with started(job, SilentProgress()) as script:
        process, listener = script.process, script.listener
        stretches: Sequence[Stretch] = ()
        # A single step may take longer than the look.
        while process.listen(LISTEN_SECONDS):
            stretches, now = listener.timeline.stretches, time.perf_counter()
            if not stretches and now - process.started_s > START_SECONDS:
                return FirstLook(
                    failure=_no_speed(listener, f"it has not trained after {START_SECONDS:.0f} s")
                )
            looked = now - stretches[0].start_s if stretches else 0.0
            if looked > LOOK_SECONDS and (len(stretches) >= MIN_STRETCHES or looked > START_SECONDS):
                break
        stretches = listener.timeline.stretches
        if not stretches:
            code = os.waitstatus_to_exitcode(process.status or 0)
            return FirstLook(
                failure=_no_speed(listener, f"it exited with status {code} before its first step")
            )
        late = stretches[len(stretches) // 2 :]
        has_loss = False
        with contextlib.suppress(TrialFailedError):
            has_loss = bool(listener.losses().losses or listener.losses().val_losses)
        return FirstLook(
            facts=script.sandbox.relative_facts(listener.watched.facts),
            samples_per_s=sum(stretch.samples for stretch in late) / sum(stretch.seconds for stretch in late),
            startup_seconds=stretches[0].start_s - process.started_s,
            source=listener.source,
            has_loss=has_loss,
        )


def _no_speed(listener: Listener, why: str) -> Failure:
    last = next((line.strip() for line in reversed(listener.last_lines) if line.strip()), "")
    return Failure(
        kind=FailureKind.NO_RESULT, message=f"{why}{f'; its last line: {last[:200]}' if last else ''}"
    )

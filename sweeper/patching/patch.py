"""Makes a diff of what a tune found, and keeps of it what holds without sweeper."""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sweeper.interventions.intervention import HALF, SINGLE
from sweeper.judging import speed
from sweeper.judging.arms import Arm, patched, root_of
from sweeper.judging.losses import Baseline, Trained
from sweeper.judging.speed import Compared, Speed
from sweeper.patching.edits import Made, Sources, written
from sweeper.patching.source import CannotEditError
from sweeper.script.command_line import parted

Say = Callable[[str], None]

CONTEXT_LINES = 2
"""Few, so that a person can take the hunks of one change alone."""

IN_HALF = ("precision", "tf32")
"""Changes after which rounding is larger."""

UNPROVABLE = ("batch_size",)
"""Changes that train otherwise by what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A diff of the user's files.

    Attributes:
        text: The unified diff, relative to the repository; empty if nothing is left of it.
        made: The changes that are in it.
        left_out: Why others are not, by name.
        training: How the patched script trains; None if that was not compared.
        speed: How fast it is, compared with the script as it is; None without a patch.
    """

    text: str
    made: tuple[Made, ...]
    left_out: dict[str, str]
    training: Trained | None = None
    speed: Compared | None = None

    @property
    def holds(self) -> bool:
        """Whether it was shown to be faster."""
        return self.speed is not None and self.speed.answer is Speed.FASTER


def make(command: Sequence[str], folder: Path, made: Sequence[Made], minutes: float, say: Say) -> Patch:
    """Returns the patch for some changes: those that can be written down, and train the same then.

    Args:
        folder: Where the command runs.
        minutes: Limit for everything.
        say: Is called with a line for each thing that was found.

    Raises:
        TrialFailedError: The script as it is cannot be measured.
        UserError: It cannot be started.
    """
    deadline_s = time.monotonic() + 60 * minutes
    before = Arm(name="as it is", command=tuple(command), folder=folder)
    found = speed.measured(before)
    sources = Sources(
        folder=folder,
        main=parted(shlex.join(command)).script,
        places=found.observed.get("places", {}),
        device=found.observed.get("device", "cpu"),
        threads=int(found.observed.get("threads") or 1),
    )
    left_out: dict[str, str] = {}

    def leave_out(each: Made, why: str) -> None:
        left_out[each.name] = why
        say(f"  {each.name} {each.value}: left out, {why}")

    kept: list[Made] = []
    for each in made:
        try:
            diff(sources, [*kept, each])
            kept.append(each)
        except CannotEditError as error:
            leave_out(each, str(error))
    training = None
    if provable := [each for each in kept if each.name not in UNPROVABLE]:
        baseline = Baseline(before, found)
        training = _trained(baseline, before, diff(sources, provable), provable)
        if not training.is_same:
            for each in provable:
                alone = _trained(baseline, before, diff(sources, [each]), [each])
                if not alone.is_same:
                    kept.remove(each)
                    leave_out(each, f"written down, it does not train the same ({alone.why})")
            provable = [each for each in kept if each.name not in UNPROVABLE]
            training = _trained(baseline, before, diff(sources, provable), provable) if provable else None
            if training is not None and not training.is_same:
                for each in provable:
                    leave_out(each, f"together they do not train the same ({training.why})")
                kept = [each for each in kept if each.name in UNPROVABLE]
    text = diff(sources, kept)
    if not text:
        return Patch(text="", made=(), left_out=left_out)
    with patched(text.encode(), "patched", command, folder) as (_, after):
        compared = speed.compare((before, after), deadline_s, say)
    return Patch(text=text, made=tuple(kept), left_out=left_out, training=training, speed=compared)


def _trained(baseline: Baseline, before: Arm, text: str, made: Sequence[Made]) -> Trained:
    rounding = HALF if any(each.name in IN_HALF for each in made) else SINGLE
    with patched(text.encode(), "patched", before.command, before.folder) as (_, after):
        return baseline.compare(after, rounding)


def diff(sources: Sources, made: Sequence[Made]) -> str:
    """Returns the unified diff for some changes, relative to the repository; empty for none.

    Raises:
        CannotEditError: One of them cannot be written down.
    """
    root = root_of(sources.folder)
    parts: list[str] = []
    for path, text in sorted(written(sources, made).items()):
        place = (sources.folder / path).resolve()
        if not place.is_relative_to(root):
            raise CannotEditError(f"{path} is outside of {root}")
        name = place.relative_to(root).as_posix()
        was = place.read_text(encoding="utf-8")
        lines = difflib.unified_diff(
            was.splitlines(keepends=True),
            text.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
            n=CONTEXT_LINES,
        )
        parts += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        ]
    return "".join(parts)

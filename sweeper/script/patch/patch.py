"""Makes a diff of the changes that a tune found, and keeps those that hold without sweeper."""

from __future__ import annotations

import dataclasses
import difflib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.measurement import Measurement
from sweeper.judging import speed
from sweeper.judging.arms import Arm, patched, root_of
from sweeper.judging.losses import Baseline, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.race.verify import Claim
from sweeper.script.changes import CHANGES
from sweeper.script.changes.change import CHANGES_TRAINING, CLOSE, DRAWS, Change
from sweeper.script.patch.edits import PatchedChange, Sources, canonical_path, edit_sources
from sweeper.script.patch.source import CannotEditError, lines_of, statements_by_line
from sweeper.script.run.command_line import parse_command
from sweeper.sweep.folder.fingerprint import files_named

Say = Callable[[str], None]

CONTEXT_LINES = 2
"""Maximum lines of context. Nearby changes have separate hunks, so that a person can apply one alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A diff of the user's files.

    Attributes:
        text: The unified diff, relative to the repository; empty if no change is left.
        left_out: Reasons why other changes are left out, by name.
        training: How the patched script trains; None if that was not compared.
        speed: Its speed, compared with the script as it is; None without a patch.
    """

    text: str
    left_out: dict[str, str]
    training: LossComparison | None = None
    speed: SpeedComparison | None = None

    @property
    def holds(self) -> bool:
        """Whether it was shown to be faster."""
        return self.speed is not None and self.speed.answer is Speed.FASTER


def make(
    command: Sequence[str],
    folder: Path,
    candidates: Sequence[PatchedChange],
    minutes: float,
    say: Say,
    changes: Mapping[str, Change] = CHANGES,
) -> Patch:
    """Returns the patch with those changes that can be written into the source and then train the same.

    Changes whose kind is `CHANGES_TRAINING` are not compared with the baseline's training.

    Args:
        folder: Folder that the command runs in.
        minutes: Limit for the comparison of speeds alone; the comparison of the training before it has none.
        say: Called with a line for each finding.
        changes: All changes that there are, by name.

    Raises:
        TrialFailedError: The script as it is cannot be measured.
        UserError: It cannot be started.
    """
    before = Arm(name="as it is", command=tuple(command), folder=folder)
    measurement = speed.measure_version(before)
    sources = dataclasses.replace(_sources(command, folder, measurement.observed), changes=changes)
    verifier = _Verifier(before, measurement, sources, say)
    written = verifier.keep_writable(candidates)
    free = [change for change in written if _kind(sources, change) == CHANGES_TRAINING]
    verified, training = verifier.verify([change for change in written if change not in free])
    kept = [change for change in written if change in free or change in verified]
    text = diff(sources, kept)
    if not text:
        return Patch(text="", left_out=verifier.left_out)
    with patched(text.encode(), "patched", command, folder) as (_, after):
        compared = speed.compare((before, after), 60 * minutes, say)
    if compared.is_stopped:
        raise KeyboardInterrupt
    return Patch(text=text, left_out=verifier.left_out, training=training, speed=compared)


def _sources(command: Sequence[str], folder: Path, observed: Mapping[str, Any]) -> Sources:
    """Returns the files of a training.

    Args:
        observed: What the training uses (`sweeper.script.changes.facts`).
    """
    named = files_named(parse_command(shlex.join(command)).start, folder)
    main = next((path for path in named if path.endswith(".py")), "")
    return Sources(
        folder=folder,
        main=main and canonical_path(folder, main),
        places=observed.get("places", {}),
        threads=int(observed.get("threads") or 1),
        workers=observed.get("num_workers"),
        batch=observed.get("batch") or "",
        facts=observed,
    )


def _kind(sources: Sources, change: PatchedChange) -> str:
    implementation = sources.changes.get(change.name)
    return "" if implementation is None else implementation.kind


class _Verifier:
    """Finds out which changes can be written into the source, and then train the same.

    Attributes:
        left_out: Reasons why the others are left out, by name.
    """

    def __init__(self, before: Arm, measurement: Measurement, sources: Sources, say: Say) -> None:
        self._before, self._sources, self._say = before, sources, say
        self._baseline = Baseline(before, measurement)
        self.left_out: dict[str, str] = {}

    def keep_writable(self, changes: Sequence[PatchedChange]) -> list[PatchedChange]:
        """Returns the changes that can be written into the source together."""
        kept: list[PatchedChange] = []
        for change in changes:
            try:
                diff(self._sources, [*kept, change])
                kept.append(change)
            except CannotEditError as error:
                self._leave_out(change, str(error))
        return kept

    def verify(
        self, changes: Sequence[PatchedChange]
    ) -> tuple[Sequence[PatchedChange], LossComparison | None]:
        """Returns the changes with which the patched script trains the same, and how it trains."""
        if not changes:
            return (), None
        plain = [change for change in changes if not self._redraws(change)]
        if not plain or len(plain) == len(changes):
            return self._verify_alike(changes)
        # Other draws would hide other differences.
        kept, comparison = self._verify_alike(plain)
        rest = [change for change in changes if change in kept or self._redraws(change)]
        together = self._train(rest)
        if together.is_same:
            return rest, together
        self._leave_out_different({change: together for change in rest if self._redraws(change)})
        return kept, comparison

    def _verify_alike(
        self, changes: Sequence[PatchedChange]
    ) -> tuple[Sequence[PatchedChange], LossComparison | None]:
        """Verifies changes together or, if that fails, each one alone, and then those that hold together."""
        together = self._train(changes)
        if together.is_same:
            return changes, together
        alone = {change: self._train([change]) for change in changes}
        self._leave_out_different(alone)
        rest = [change for change in changes if alone[change].is_same]
        together = self._train(rest) if rest else together
        if together.is_same:
            return rest, together
        for change in rest:
            self._leave_out(change, f"the changes together train differently ({together.why})")
        return (), None

    def _train(self, some: Sequence[PatchedChange]) -> LossComparison:
        """Compares the training of the script with some changes with that of the script as it is."""
        sources, before = self._sources, self._before
        claim = Claim(
            kind=DRAWS if any(map(self._redraws, some)) else CLOSE,
            rounding=max(sources.changes[change.name].tolerance(sources.facts) for change in some),
            keeps_arithmetic=all(sources.changes[change.name].keeps_arithmetic for change in some),
            is_version=True,
        )
        with patched(diff(sources, some).encode(), "patched", before.command, before.folder) as (_, after):
            return self._baseline.compare(after, claim)

    def _redraws(self, change: PatchedChange) -> bool:
        return _kind(self._sources, change) == DRAWS

    def _leave_out_different(self, compared: Mapping[PatchedChange, LossComparison]) -> None:
        for change, comparison in compared.items():
            if not comparison.is_same:
                why = f"it trains differently once it is in the source ({comparison.why})"
                self._leave_out(change, why)

    def _leave_out(self, change: PatchedChange, why: str) -> None:
        self.left_out[change.name] = why
        self._say(f"  {change.name} {change.value}: left out because {why}")


def diff(sources: Sources, changes: Sequence[PatchedChange]) -> str:
    """Returns the unified diff for some changes, relative to the repository; empty for none.

    Raises:
        CannotEditError: One of them cannot be written into the source.
    """
    root = root_of(sources.folder)
    parts: list[str] = []
    for path, text in sorted(edit_sources(sources, changes).items()):
        place = (sources.folder / path).resolve()
        if not place.is_relative_to(root):
            raise CannotEditError(f"{place} is outside of {root}")
        name = place.relative_to(root).as_posix()
        was = sources.exact_text(path)
        new = text.replace("\n", "\r\n") if "\r\n" in was else text
        hunks = [*_hunks(lines_of(was), lines_of(new))]
        if hunks:
            parts += [f"--- a/{name}\n+++ b/{name}\n", *hunks]
    return "".join(parts)


def _hunks(was: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """Yields as many hunks of a unified diff as possible; each line is in the context of only one.

    The edits of one statement share a hunk.
    """
    parts: list[list[tuple[str, int, int, int, int]]] = []
    statements = statements_by_line("".join(was))
    for code in difflib.SequenceMatcher(None, was, new, autojunk=False).get_opcodes():
        if code[0] == "equal":
            continue
        before = parts[-1][-1][2] if parts else 0
        # Without a line of context on either side, a hunk would only fit at an end of the file.
        is_near = code[1] - before < 2 or statements.get(before + 1) == statements.get(code[1] + 1, -1)
        if parts and is_near:
            parts[-1].append(code)
        else:
            parts.append([code])
    for number, codes in enumerate(parts):
        before = codes[0][1] if number == 0 else (codes[0][1] - parts[number - 1][-1][2]) // 2
        after = (parts[number + 1][0][1] if number + 1 < len(parts) else len(was) * 2) - codes[-1][2]
        lead = min(CONTEXT_LINES, before)
        trail = min(CONTEXT_LINES, after // 2, len(was) - codes[-1][2])
        begin, end = codes[0][1] - lead, codes[-1][2] + trail
        start, stop = codes[0][3] - lead, codes[-1][4] + trail
        lines, at = [f"@@ -{begin + 1},{end - begin} +{start + 1},{stop - start} @@\n"], begin
        for _, i1, i2, j1, j2 in codes:
            lines += [f" {line}" for line in was[at:i1]]
            lines += [f"-{line}" for line in was[i1:i2]] + [f"+{line}" for line in new[j1:j2]]
            at = i2
        lines += [f" {line}" for line in was[at:end]]
        yield "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        )

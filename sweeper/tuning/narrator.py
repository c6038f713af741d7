"""Says what a tune's race finds, one line as soon as something is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from sweeper.core.measurement import Measurement
from sweeper.race.log import BASELINE
from sweeper.race.tally import Tally
from sweeper.results.formatting import interval, times
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT
from sweeper.tuning.changes import NEEDS_PERMISSION, ChangeValue
from sweeper.tuning.contests import REFUSED, WON, Contest, RaceState, middle
from sweeper.tuning.race import Course
from sweeper.tuning.words import pace

HOW = {
    EXACT: "equal in every bit",
    CLOSE: "same batches and learning rates, first losses equal up to rounding",
    DRAWS: "equal except for the random numbers",
}
"""How an arm trains, as far as its first steps show; curves are compared at the end, with other seeds."""
WAITING = 0.02
"""Smallest share of a step that is worth a word."""

Say = Callable[[str], None]


class Narrator:
    """Follows a race and says what is new."""

    def __init__(self, say: Say, elapsed: Callable[[], float]) -> None:
        """Says nothing yet.

        Args:
            elapsed: Returns the seconds since the tune began.
        """
        self._say, self._elapsed = say, elapsed
        self._has_said_pace = self._has_said_first = False
        self._reported: set[int] = set()

    def follow(self, course: Course) -> None:
        """Says what has become known."""
        state = course.state
        if state is None or course.warm is None:
            return
        if not self._has_said_pace:
            self._has_said_pace = True
            self._tell(_own_pace(course.warm.measurement))
            for line in not_tried_lines(course.changes):
                self._tell(line)
        first = next(iter(state.contests.values()), None)
        if first is not None and not self._has_said_first and not first.outcome:
            tally = Tally.of(state.rounds, first.arm)
            if tally.logs:
                self._has_said_first = True
                # A single turn of each does not show how much turns differ.
                about = "" if tally.carries_interval else "about "
                ratio = _ratio(state, first) if tally.carries_interval else times(math.exp(tally.mean))
                self._tell(f"So far {about}{ratio}, {_verification_words(first)}: {_words(first.members)}.")
        for contest in state.contests.values():
            if contest.outcome and contest.arm not in self._reported:
                self._reported.add(contest.arm)
                self._tell(_outcome_line(state, contest))

    def _tell(self, text: str) -> None:
        self._say(f"{self._elapsed():4.0f} s  {text}")


def _own_pace(warm: Measurement) -> str:
    parts = warm.breakdown
    shares = [
        f"{100 * part / parts.step_s:.0f}% of a step {what}"
        for part, what in ((parts.data_s, "waits for data"), (parts.optimizer_s, "goes to the optimizer"))
        if parts.step_s and part > WAITING * parts.step_s
    ]
    return "; ".join([f"Your script: {pace(warm)}", *shares]) + "."


def not_tried_lines(changes: Sequence[ChangeValue]) -> Iterator[str]:
    """Yields which changes cannot help here, in a line, and which may be allowed."""
    candidates = {change.name for change in changes if not change.refused}
    allowed = [change for change in changes if change.refused != NEEDS_PERMISSION]
    if names := ", ".join(dict.fromkeys(change.name for change in allowed if change.name not in candidates)):
        yield f"Not tried because they cannot help here: {names}."
    for change in changes:
        if change.refused == NEEDS_PERMISSION:
            yield f"{change}: not tried because {change.refused}."


def _outcome_line(state: RaceState, contest: Contest) -> str:
    """Returns what came of an arm."""
    words = state.difference(contest) or contest.requested - state.members(contest.reference)
    is_first = contest.reference == BASELINE
    if contest.outcome == REFUSED:
        verified = contest.verified
        names = {word.partition("=")[0] for word in words}
        missing = [text.partition(": ") for text in (verified.missing if verified is not None else ())]
        why = "; ".join(reason for name, _, reason in missing if name in names)
        why = why or (verified.fault if verified is not None else "") or "its processes fail"
        return f"{_words(words)}: left out because {why}."
    if state.is_smaller(contest):
        ratio, is_one = _ratio(state, contest), len(words) == 1
        if contest.outcome == WON:
            end = "it is left out" if is_one else "they are left out"
            return f"Without {_words(words)}: no slower ({ratio}), so {end}."
        return f"Without {_words(words)}: {ratio}, so {'it stays' if is_one else 'they stay'}."
    more = "" if is_first else " on top"
    # What makes another change needless ends it: both are in the difference.
    lost = words & state.members(contest.reference)
    name = f"{_words(words - lost)}{f' without {_words(lost)}' if lost else ''}"
    if contest.outcome == WON:
        return f"{name}: {_ratio(state, contest)}{more}, {_verification_words(contest)}."
    return f"{name}: {_ratio(state, contest)}{more}; not continued."


def _words(members: frozenset[str] | set[str]) -> str:
    return ", ".join(word.replace("=", " ") for word in sorted(members))


def _ratio(state: RaceState, contest: Contest) -> str:
    tally = Tally.of(state.rounds, contest.arm, contest.reference)
    mean, half = middle(state.rounds, contest), tally.half_width()
    return f"{times(math.exp(mean))} {interval(math.exp(mean - half), math.exp(mean + half))}"


def _verification_words(contest: Contest) -> str:
    verified = contest.verified
    if verified is None or verified.is_open:
        return "not verified yet"
    return f"{HOW.get(verified.kind, 'as before')} over {verified.extent}"

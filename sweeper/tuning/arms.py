"""Keeps what the arms of a tune change, and writes what was verified of it beside their trials."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sweeper.core.config import TrialConfig
from sweeper.core.record import TrialRecord
from sweeper.exports import verification
from sweeper.exports.verification import Verification, VerifiedChange
from sweeper.race.log import Verified
from sweeper.race.policy import Start
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.fingerprint import digest_of_scripts
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.contests import RaceState


class Arms:
    """The arms of a tune.

    Attributes:
        changes: All values of all changes; those that are not tried have the reason.
    """

    def __init__(self, spec: SweepSpec, command: Sequence[str]) -> None:
        """Knows no arm yet.

        Args:
            command: The command of the script.
        """
        self._spec, self._command = spec, command
        self._members: dict[int, tuple[str, ...]] = {}
        self.changes: Sequence[ChangeValue] = ()

    def config_of(self, words: Collection[str]) -> TrialConfig:
        """Returns the configuration of an arm from the words of what it changes."""
        values = dict(word.split("=", 1) for word in words)
        return self._spec.config({**self._spec.baseline, **values})

    def config_of_arm(self, arm: int) -> TrialConfig:
        """Returns the configuration of an arm, or of the baseline."""
        return self.config_of(self._members.get(arm, ()))

    def changes_of(self, start: Start) -> Sequence[ChangeValue]:
        """Returns what the arm of a process changes."""
        if start.members:
            self._members[start.arm] = start.members
        by_word = {change.word_of_arm: change for change in self.changes}
        return [by_word[word] for word in self._members[start.arm]]

    def enter(self, state: RaceState) -> None:
        """Enters what the arms of a race were to change."""
        for arm, contest in state.contests.items():
            self._members[arm] = tuple(sorted(contest.requested))

    def write(self, record: TrialRecord, event: Verified, *, is_nondeterministic: bool) -> None:
        """Writes what was verified about an arm to its trial's folder.

        Args:
            record: Its trial.
            is_nondeterministic: Whether the script as it is does not repeat itself.
        """
        if event.is_failure:
            # What an earlier process has shown is no reason to use it.
            verification.remove(record)
            return
        words = self._members.get(record.number, ())
        missing = {text.partition(":")[0] for text in event.missing}
        changes = [one for one in self.changes if one.word_of_arm in words and one.name not in missing]
        kept = Verification(
            kind=event.kind,
            changes=tuple(
                VerifiedChange(name=one.name, value=one.value, original=one.original, why=one.why)
                for one in changes
            ),
            is_nondeterministic=is_nondeterministic,
            difference=event.fault,
            extent=event.extent,
            code=digest_of_scripts(self._command),
        )
        verification.write(record, kept)

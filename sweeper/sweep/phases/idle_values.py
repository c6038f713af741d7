"""Finds values of a script's flags that change nothing, so that they can leave the space.

torch reports what a training uses. If that is what the baseline uses, although a flag asks for something
else, the flag has no effect on this device, or the script does not read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sweeper.core.config import Scalar
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.core.script import OBSERVED
from sweeper.sweep.phases.failing_values import Space, choices_of


def idle_values(records: Iterable[TrialRecord], space: Space) -> Mapping[str, Mapping[Scalar, str]]:
    """Returns the choices of `space` without effect, by parameter, each with the reason."""
    trials = [record for record in records if record.measurement is not None]
    base = next((record for record in trials if record.number == BASELINE), None)
    if base is None or base.measurement is None:
        return {}
    usual, seen = base.config.flatten(), base.measurement.observed
    found: dict[str, dict[Scalar, str]] = {}
    for record in trials:
        assert record.measurement is not None
        for name, value in choices_of(record.config, space):
            fact = OBSERVED.get(name, "")
            if value == usual.get(name) or seen.get(fact) is None:
                continue
            if record.measurement.observed.get(fact) == seen[fact]:
                found.setdefault(name, {})[value] = f"the training is the same as with {usual.get(name)}"
    return found

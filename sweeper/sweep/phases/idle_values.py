"""Finds values of a script's flags that change nothing, so that they can leave the space.

torch reports the settings that a training uses. If they are the baseline's although a flag asks for another
value, the flag has no effect on this device, or the script does not read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sweeper.core.config import Scalar
from sweeper.core.record import BASELINE, TrialRecord
from sweeper.core.script import OBSERVED
from sweeper.spec import CategoricalParameter, SweepSpec
from sweeper.sweep.phases.failing_values import choices_of

Idle = Mapping[str, Mapping[Scalar, str]]


def idle_values(
    records: Iterable[TrialRecord], spec: SweepSpec, left: Mapping[str, Mapping[Scalar, str]] | None = None
) -> Idle:
    """Returns the choices of the space without effect, by parameter, each with the reason.

    A value is left out if it had an effect in any trial. Every parameter keeps at least one choice.

    Args:
        left: Choices that have left the space for another reason.
    """
    trials = [record for record in records if record.measurement is not None]
    base = next((record for record in trials if record.number == BASELINE), None)
    if base is None or base.measurement is None:
        return {}
    usual, seen = base.config.flatten(), base.measurement.observed
    effects: dict[tuple[str, Scalar], list[bool]] = {}
    for record in trials:
        assert record.measurement is not None
        for name, value in choices_of(record.config, spec.space):
            fact = OBSERVED.get(name, "")
            others = [each for each in usual if each != name and OBSERVED.get(each) == fact]
            # If two parameters set the same fact, it does not show the effect of one of them.
            if value != usual.get(name) and seen.get(fact) is not None and not others:
                effects.setdefault((name, value), []).append(
                    record.measurement.observed.get(fact) != seen[fact]
                )
    found: dict[str, dict[Scalar, str]] = {}
    for (name, value), had_effect in effects.items():
        parameter = spec.space[name]
        assert isinstance(parameter, CategoricalParameter)
        gone = {value, *found.get(name, ()), *(left or {}).get(name, ())}
        if not any(had_effect) and any(choice not in gone for choice in parameter.choices):
            found.setdefault(name, {})[value] = f"the training is the same as with {usual.get(name)}"
    return found


def without_idle(records: Sequence[TrialRecord], spec: SweepSpec) -> list[TrialRecord]:
    """Returns the trials, without those that differ from a measured one only in values without effect."""
    idle = idle_values(records, spec)
    keys = {record.config.key() for record in records if record.measurement is not None}
    baseline = spec.baseline_config().flatten()
    found = []
    for record in records:
        same = [name for name, value in choices_of(record.config, spec.space) if value in idle.get(name, ())]
        plain = record.config.replace({name: baseline[name] for name in same})
        if not same or plain.key() not in keys:
            found.append(record)
    return found

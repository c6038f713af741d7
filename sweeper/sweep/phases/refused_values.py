"""Finds values that no trial's model could take, so that they can leave the space."""

from __future__ import annotations

from sweeper.core.config import Scalar
from sweeper.core.record import TrialRecord
from sweeper.spec import CategoricalParameter
from sweeper.sweep.phases.failing_values import Choice, Space, choices_of
from sweeper.sweep.phases.idle_values import Idle

OF_MODEL = frozenset({"activation_checkpointing", "compile.regional", "memory_format", "precision.amp"})
"""Parameters whose values a model accepts or refuses, whatever the other parameters are."""


class RefusedValues:
    """The choices that trials applied, and those that they could not apply.

    The result depends on the trials that have ended, not on their order: a continued sweep decides the same.
    """

    def __init__(self, space: Space) -> None:
        """Starts without trials.

        Args:
            space: The space that is searched. With several models, one may accept what another refuses.
        """
        is_one_model = not any(name.startswith("model.") for name in space)
        self._space, self._names = space, OF_MODEL & space.keys() if is_one_model else frozenset()
        self._applied: set[Choice] = set()
        self._refused: dict[Choice, tuple[int, str]] = {}

    def add(self, record: TrialRecord) -> None:
        """Adds a trial that has ended."""
        if record.measurement is None or not self._names:
            return
        notes = record.measurement.effective
        for choice in choices_of(record.config, self._space):
            name, _ = choice
            if name == "compile.regional" and record.config.compile.mode in ("eager", "graph"):
                # Nothing is compiled.
                continue
            if name in self._names and name in notes:
                ran, _, why = notes[name].partition(": ")
                first = min(self._refused.get(choice, (record.number,))[0], record.number)
                self._refused[choice] = first, why or ran
            elif name in self._names:
                self._applied.add(choice)

    def left(self, gone: Idle) -> Idle:
        """Returns the choices that leave the space, by parameter, each with the reason.

        Every parameter keeps at least one choice.

        Args:
            gone: Choices that have left it for another reason.
        """
        found: dict[str, dict[Scalar, str]] = {}
        for (name, value), (_, why) in sorted(self._refused.items(), key=lambda each: each[1]):
            parameter = self._space[name]
            assert isinstance(parameter, CategoricalParameter)
            lost = {value, *found.get(name, ()), *gone.get(name, ())}
            if (name, value) not in self._applied and any(each not in lost for each in parameter.choices):
                found.setdefault(name, {})[value] = why
        return found

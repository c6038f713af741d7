"""Fits an additive model of log throughput: what each parameter contributes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from sweeper.core.config import Scalar, TrialConfig
from sweeper.schema import CategoricalParameter, Parameter, SweepSpec
from sweeper.schema.neighbours import place
from sweeper.schema.space import acts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RIDGE = 0.1
"""Penalty on large effects, for columns from -1 to 1; it weighs as much as a tenth of a trial."""


def idle_names(config: TrialConfig, spec: SweepSpec) -> frozenset[str]:
    """Returns the names of the space that have no effect on a configuration at any value."""
    here = config.canonical()
    flat = here.flatten()
    return frozenset(
        name
        for name, parameter in spec.space.items()
        if not acts(name, spec.space, flat)
        or config.replace({name: _other_value(parameter, flat.get(name))}).canonical() == here
    )


class IdleNames:
    """`idle_names` for many configurations of one space, cached because the answers are few."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec = spec
        # The fields that `acts` and the canonical form depend on, and parameters with a single value.
        gates = {
            *("loader.kind", "loader.num_workers", "optimizer.lr_rule"),
            *("compile.mode", "device.count"),
        }
        for name, parameter in spec.space.items():
            gates |= {*(parameter.when or ())} | ({name} if _is_single(parameter) else set())
        self._gates = sorted(gates)
        self._idle_names: dict[tuple[object, ...], frozenset[str]] = {}

    def __call__(self, config: TrialConfig, flat: Mapping[str, Scalar]) -> frozenset[str]:
        """Returns the names of the space that have no effect on a configuration.

        Args:
            flat: The canonical configuration, flattened.
        """
        key = (config.names_are_fields, *(flat.get(name) for name in self._gates))
        if key not in self._idle_names:
            self._idle_names[key] = idle_names(config, self._spec)
        return self._idle_names[key]


def _is_single(parameter: Parameter) -> bool:
    if isinstance(parameter, CategoricalParameter):
        return len(parameter.choices) < 2
    return parameter.low == parameter.high


def _other_value(parameter: Parameter, value: Scalar) -> Scalar:
    """Returns another value of the parameter, if it has one."""
    few = (
        parameter.choices if isinstance(parameter, CategoricalParameter) else (parameter.low, parameter.high)
    )
    return next((choice for choice in few if choice != value), few[0])


Flat = Mapping[str, Scalar]
"""The values of the searched parameters that have an effect on a configuration, by name."""


class ActiveValues:
    """Reduces configurations of one space to the values that have an effect on them."""

    def __init__(self, spec: SweepSpec) -> None:
        self._spec, self._idle = spec, IdleNames(spec)

    def __call__(self, config: TrialConfig) -> Flat:
        """Returns the values that have an effect, by name."""
        flat = config.canonical().flatten()
        without = self._idle(config, flat)
        return {name: flat.get(name) for name in self._spec.space if name not in without}


class Design:
    """Configurations as rows of numbers: a column per choice, a parabola per number, where they act."""

    def __init__(self, flats: Sequence[Flat], spec: SweepSpec) -> None:
        """Finds the columns; a value that no known configuration has gets none."""
        import numpy as np

        self._spec = spec
        self._seen = {
            name: dict.fromkeys(flat[name] for flat in flats if name in flat) for name in spec.space
        }
        self._ranges = {name: _range(parameter, self._seen[name]) for name, parameter in spec.space.items()}
        self.rows = np.array([self.row(flat) for flat in flats])
        """The rows of the known configurations."""

    def row(self, flat: Flat) -> NDArray[np.float64]:
        """Returns the row of any configuration."""
        import numpy as np

        columns: list[float] = []
        for name, parameter in self._spec.space.items():
            across = self._ranges[name]
            if across is None:
                columns += [float(name in flat and flat[name] == value) for value in self._seen[name]]
                continue
            middle, half = across
            mine = place(parameter, flat.get(name))
            along = 0.0 if mine is None else (mine - middle) / half
            columns += [along, along**2]
        return np.array(columns)

    def knows(self, name: str, value: Scalar) -> bool:
        """Returns whether the configurations show a value's effect; a number need not be among theirs."""
        seen = self._seen[name]
        return (value in seen or place(self._spec.space[name], value) is not None) and len(seen) > 1

    def num_new(self, flat: Flat) -> int:
        """Returns how many of a configuration's values have no column."""
        return sum(
            self._ranges[name] is None and value not in self._seen[name] for name, value in flat.items()
        )


class Effects:
    """Log throughput as a sum of a value per choice and a parabola per number, where they act."""

    def __init__(self, trials: Sequence[tuple[TrialConfig, float]], spec: SweepSpec) -> None:
        """Fits the sum to trials: configurations of one space and their throughput in samples/s."""
        import numpy as np

        self._acting = ActiveValues(spec)
        self._design = Design([self._acting(config) for config, _ in trials], spec)
        logs = np.log([throughput for _, throughput in trials])
        # Centred, so that the mean is not penalised.
        rows, logs = self._design.rows - self._design.rows.mean(axis=0), logs - logs.mean()
        self._effects = np.linalg.solve(rows.T @ rows + RIDGE * np.eye(rows.shape[1]), rows.T @ logs)

    def knows(self, name: str, value: Scalar) -> bool:
        """Returns whether the trials show the effect of a value."""
        return self._design.knows(name, value)

    def ratio(self, config: TrialConfig, to: TrialConfig) -> float:
        """Returns the predicted throughput of a configuration over that of another."""
        return math.exp(self.gain(self._acting(config), self._acting(to)))

    def gain(self, flat: Flat, over: Flat) -> float:
        """Returns the logarithm of the predicted ratio of two configurations' throughput."""
        return float((self._design.row(flat) - self._design.row(over)) @ self._effects)


def _range(parameter: Parameter, seen: Iterable[Scalar]) -> tuple[float, float] | None:
    """Returns the centre and half-width of the values' places; None if none has a place."""
    places = [position for position in (place(parameter, value) for value in seen) if position is not None]
    if not places:
        return None
    return (min(places) + max(places)) / 2, (max(places) - min(places)) / 2 or 1.0
